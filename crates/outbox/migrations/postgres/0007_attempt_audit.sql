-- Attempts that failed, for people: what happened to an event before it was done or dead. What succeeds leaves no row here.
CREATE TABLE IF NOT EXISTS {attempts} (
    attempt_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id   varchar(36) COLLATE "C" NOT NULL,
    failed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    number     integer NOT NULL,
    node       varchar(128) NOT NULL,
    -- 1: the event died of it.
    fatal      smallint NOT NULL DEFAULT 0 CHECK (fatal IN (0, 1)),
    error      text NOT NULL
);
CREATE INDEX IF NOT EXISTS {events_attempt_event} ON {attempts} (event_id, attempt_id);
CREATE INDEX IF NOT EXISTS {events_attempt_at} ON {attempts} (failed_at);

-- What people changed, written down before it was done. Nothing here is ever deleted by a relay.
CREATE TABLE IF NOT EXISTS {audits} (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor    varchar(255) NOT NULL,
    via      varchar(64) NOT NULL,
    action   varchar(64) NOT NULL,
    target   varchar(255),
    details  text,
    -- NULL until it is known what came of it.
    outcome  text,
    affected bigint
);
