-- The event log: permanent events in one order, with tags. Writers in any language may set:
-- event_id, event_type, tags, aggregate_type, aggregate_id, tenant_id, ordering_key,
-- correlation_id, headers, payload or payload_bytes with content_type, occurred_at. The position is
-- left out. The minimum is:
--   INSERT INTO outbox_log (event_type, tags, payload) VALUES ('DepositMade', '["wallet_id=w1"]', '{"amount": 5}');
CREATE TABLE IF NOT EXISTS {log} (
    -- Position in the log. AUTOINCREMENT: a number is never reused, not even after a delete.
    position       integer PRIMARY KEY AUTOINCREMENT,
    event_id       text NOT NULL UNIQUE DEFAULT (lower(hex(randomblob(16)))) CHECK (length(event_id) BETWEEN 1 AND 36),
    event_type     text NOT NULL CHECK (length(event_type) BETWEEN 1 AND 255),
    -- A JSON array of texts, each name=value. Also in the table of tags, by which queries find
    -- events.
    tags           text NOT NULL DEFAULT '[]' CHECK (json_valid(tags) AND json_type(tags) = 'array'),
    aggregate_type text NOT NULL DEFAULT '__GLOBAL__' CHECK (length(aggregate_type) <= 64),
    aggregate_id   text CHECK (length(aggregate_id) <= 128),
    tenant_id      text CHECK (length(tenant_id) <= 64),
    ordering_key   text CHECK (length(ordering_key) <= 255),
    correlation_id text CHECK (length(correlation_id) <= 255),
    headers        text,
    payload        text CHECK (payload IS NULL OR json_valid(payload)),
    payload_bytes  blob,
    content_type   text,
    occurred_at    text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (occurred_at GLOB '????-??-?? ??:??:??*'),
    created_at     text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (created_at GLOB '????-??-?? ??:??:??*'),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL))
) STRICT;
CREATE INDEX IF NOT EXISTS {events_log_type} ON {log} (event_type, position);

CREATE TABLE IF NOT EXISTS {log_tags} (
    tag      text NOT NULL CHECK (length(tag) <= 255),
    position integer NOT NULL,
    PRIMARY KEY (tag, position)
) STRICT, WITHOUT ROWID;

-- Writes the tags of all writers, including this library.
CREATE TRIGGER IF NOT EXISTS {events_log_insert} AFTER INSERT ON {log} FOR EACH ROW WHEN NEW.tags <> '[]'
BEGIN
    SELECT RAISE(ABORT, 'tags must be a JSON array of texts')
        WHERE EXISTS (SELECT 1 FROM json_each(NEW.tags) t WHERE t.type <> 'text');
    INSERT INTO {log_tags} (tag, position)
        SELECT DISTINCT CASE WHEN instr(t.value, '=') = 0 THEN t.value || '=' ELSE t.value END, NEW.position
        FROM json_each(NEW.tags) t;
END;
