-- The events. Writers in any language may set: event_id, event_type, aggregate_type, aggregate_id,
-- tenant_id, ordering_key, correlation_id, dedup_key, headers, payload or payload_bytes with
-- content_type, occurred_at, available_at, expires_at. All other columns belong to the relay. Times
-- are UTC, as datetime('now') writes them, with or without a fraction. The minimum is:
--   INSERT INTO outbox_event (event_type, payload) VALUES ('order.placed', '[42]');
CREATE TABLE IF NOT EXISTS {events} (
    -- Order of the table. AUTOINCREMENT: a number is never reused, not even after a delete.
    seq            integer PRIMARY KEY AUTOINCREMENT,
    event_id       text NOT NULL UNIQUE DEFAULT (lower(hex(randomblob(16)))) CHECK (length(event_id) BETWEEN 1 AND 36),
    event_type     text NOT NULL CHECK (length(event_type) BETWEEN 1 AND 255),
    aggregate_type text NOT NULL DEFAULT '__GLOBAL__' CHECK (length(aggregate_type) <= 64),
    aggregate_id   text CHECK (length(aggregate_id) <= 128),
    tenant_id      text CHECK (length(tenant_id) <= 64),
    ordering_key   text CHECK (length(ordering_key) <= 255),
    correlation_id text CHECK (length(correlation_id) <= 255),
    dedup_key      text CHECK (length(dedup_key) <= 255),
    headers        text,
    payload        text CHECK (payload IS NULL OR json_valid(payload)),
    payload_bytes  blob,
    content_type   text,
    status         integer NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
    attempts       integer NOT NULL DEFAULT 0,
    -- The format of times is checked, because they are compared as text.
    occurred_at    text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (occurred_at GLOB '????-??-?? ??:??:??*'),
    created_at     text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (created_at GLOB '????-??-?? ??:??:??*'),
    available_at   text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (available_at GLOB '????-??-?? ??:??:??*'),
    expires_at     text CHECK (expires_at GLOB '????-??-?? ??:??:??*'),
    done_at        text,
    last_error     text,
    locked_by      text,
    locked_until   text,
    -- Increases with every claim: fences a holder that settles too late.
    claims         integer NOT NULL DEFAULT 0,
    -- Number of starts of its handler since a holder vanished.
    crashes        integer NOT NULL DEFAULT 0,
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL))
) STRICT;

-- The relay's indexes cover pending rows only, so finished rows do not slow down a claim.
CREATE INDEX IF NOT EXISTS {events_due} ON {events} (available_at, seq) WHERE status IN (0, 2);
CREATE INDEX IF NOT EXISTS {events_key} ON {events} (ordering_key, seq) WHERE ordering_key IS NOT NULL AND status <> 1;
CREATE UNIQUE INDEX IF NOT EXISTS {events_dedup} ON {events} (dedup_key) WHERE dedup_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS {events_dead} ON {events} (seq) WHERE status = 3;
CREATE INDEX IF NOT EXISTS {events_done} ON {events} (done_at) WHERE done_at IS NOT NULL;
-- Finds DONE rows that another writer has left without `done_at`, which a purge deletes by
-- `created_at`. Normally empty.
CREATE INDEX IF NOT EXISTS {events_done_untimed} ON {events} (created_at) WHERE status = 1 AND done_at IS NULL;

-- Named leases: holder, epoch and expiry.
CREATE TABLE IF NOT EXISTS {leases} (
    name       text NOT NULL PRIMARY KEY,
    holder     text,
    epoch      integer NOT NULL,
    held_until text
) STRICT;
