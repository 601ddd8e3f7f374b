-- The events. Writers in any language may set: event_id, event_type, aggregate_type, aggregate_id,
-- tenant_id, ordering_key, correlation_id, dedup_key, headers, payload or payload_bytes with
-- content_type, occurred_at, available_at, expires_at. All other columns belong to the relay. The
-- minimum is:
--   INSERT INTO outbox_event (event_type, payload) VALUES ('order.placed', '[42]');
CREATE TABLE IF NOT EXISTS {events} (
    event_id       varchar(36) COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
    -- Order of the table. CACHE 1: a larger cache would assign numbers out of order.
    seq            bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    event_type     varchar(255) NOT NULL CHECK (event_type <> ''),
    aggregate_type varchar(64) NOT NULL DEFAULT '__GLOBAL__',
    aggregate_id   varchar(128),
    tenant_id      varchar(64),
    ordering_key   varchar(255) COLLATE "C",
    correlation_id varchar(255),
    dedup_key      varchar(255) COLLATE "C",
    headers        json,
    -- json, not jsonb: jsonb reorders keys, drops doubles and refuses \u0000.
    payload        json,
    payload_bytes  bytea,
    content_type   varchar(255),
    status         smallint NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
    attempts       integer NOT NULL DEFAULT 0,
    occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    available_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz,
    done_at        timestamptz,
    last_error     text,
    locked_by      varchar(128),
    locked_until   timestamptz,
    -- Increases with every claim: fences a holder that settles too late.
    claims         integer NOT NULL DEFAULT 0,
    -- Number of starts of its handler since a holder vanished.
    crashes        integer NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL))
) WITH (
    -- Free space on each page for the updates of a row, and a vacuum that keeps up with a queue.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

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
    name       varchar(255) PRIMARY KEY,
    holder     varchar(128),
    epoch      bigint NOT NULL,
    held_until timestamptz
);
