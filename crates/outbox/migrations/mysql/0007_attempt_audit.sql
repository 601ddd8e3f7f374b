-- Failed attempts of events, for operators. Successful attempts leave no row here.
CREATE TABLE IF NOT EXISTS {attempts} (
    attempt_id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    event_id   varchar(36) NOT NULL,
    failed_at  datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    number     integer NOT NULL,
    node       varchar(128) NOT NULL,
    -- 1: the event was dead-lettered by it.
    fatal      smallint NOT NULL DEFAULT 0,
    error      text NOT NULL,
    KEY {events_attempt_event} (event_id, attempt_id),
    KEY {events_attempt_at} (failed_at),
    CHECK (fatal IN (0, 1))
) ENGINE = InnoDB {exact};

-- Changes made by operators, written before the change. A relay deletes rows only if a retention is
-- set.
CREATE TABLE IF NOT EXISTS {audits} (
    audit_id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    made_at  datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    actor    varchar(255) NOT NULL,
    via      varchar(64) NOT NULL,
    action   varchar(64) NOT NULL,
    target   varchar(255),
    details  mediumtext,
    -- NULL until the outcome is known.
    outcome  text,
    affected bigint
) ENGINE = InnoDB {exact};
