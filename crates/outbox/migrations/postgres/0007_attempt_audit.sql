-- Failed attempts of events, for operators. Successful attempts leave no row here.
CREATE TABLE IF NOT EXISTS {attempts} (
    attempt_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id   varchar(36) COLLATE "C" NOT NULL,
    failed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    number     integer NOT NULL,
    node       varchar(128) NOT NULL,
    -- 1: the event was dead-lettered by it.
    fatal      smallint NOT NULL DEFAULT 0 CHECK (fatal IN (0, 1)),
    error      text NOT NULL
);
CREATE INDEX IF NOT EXISTS {events_attempt_event} ON {attempts} (event_id, attempt_id);
CREATE INDEX IF NOT EXISTS {events_attempt_at} ON {attempts} (failed_at);

-- Changes made by operators, written before the change. A relay deletes rows only if a retention is
-- set.
CREATE TABLE IF NOT EXISTS {audits} (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor    varchar(255) NOT NULL,
    via      varchar(64) NOT NULL,
    action   varchar(64) NOT NULL,
    target   varchar(255),
    details  text,
    -- NULL until the outcome is known.
    outcome  text,
    affected bigint
);
