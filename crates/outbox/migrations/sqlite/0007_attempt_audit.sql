-- Failed attempts of events, for operators. Successful attempts leave no row here.
CREATE TABLE IF NOT EXISTS {attempts} (
    attempt_id integer PRIMARY KEY,
    event_id   text NOT NULL CHECK (length(event_id) BETWEEN 1 AND 36),
    failed_at  text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (failed_at GLOB '????-??-?? ??:??:??*'),
    number     integer NOT NULL,
    node       text NOT NULL CHECK (length(node) <= 128),
    -- 1: the event was dead-lettered by it.
    fatal      integer NOT NULL DEFAULT 0 CHECK (fatal IN (0, 1)),
    error      text NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS {events_attempt_event} ON {attempts} (event_id, attempt_id);
CREATE INDEX IF NOT EXISTS {events_attempt_at} ON {attempts} (failed_at);

-- Changes made by operators, written before the change. A relay deletes rows only if a retention is
-- set.
CREATE TABLE IF NOT EXISTS {audits} (
    audit_id integer PRIMARY KEY AUTOINCREMENT,
    made_at  text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (made_at GLOB '????-??-?? ??:??:??*'),
    actor    text NOT NULL CHECK (length(actor) <= 255),
    via      text NOT NULL CHECK (length(via) <= 64),
    action   text NOT NULL CHECK (length(action) <= 64),
    target   text CHECK (length(target) <= 255),
    details  text,
    -- NULL until the outcome is known.
    outcome  text,
    affected integer
) STRICT;
