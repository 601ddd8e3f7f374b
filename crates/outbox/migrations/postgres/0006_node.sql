-- Running relays and the state that they announce.
CREATE TABLE IF NOT EXISTS {nodes} (
    node       varchar(128) COLLATE "C" PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    state      text NOT NULL
) WITH (fillfactor = 50);

-- Notifies a waiting relay. NOTIFY in every commit would serialize all commits, so it is sent only
-- while a relay waits for it: then the relay holds a lock that this function cannot share. An
-- INSERT while no relay waits holds a share of the lock until the end of its transaction, and no
-- relay starts to wait before that. The number of the lock is derived from the name of the table.
CREATE OR REPLACE FUNCTION {call}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('outbox_due_' || TG_RELID, '');
    RETURN NULL;
END
$$;
DO $do$
BEGIN
    DROP TRIGGER IF EXISTS {events_written} ON {events};
    EXECUTE format(
        'CREATE TRIGGER {events_written} AFTER INSERT ON {events} FOR EACH STATEMENT '
        'WHEN (NOT pg_try_advisory_xact_lock_shared(%s)) EXECUTE FUNCTION {call}()',
        (SELECT hashtextextended(n.nspname || '.' || c.relname, 11) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = '{events}'::regclass));
END
$do$;
