-- Relays that run, and what they say of themselves: for people. Nothing is decided by it.
CREATE TABLE IF NOT EXISTS {nodes} (
    node       varchar(128) COLLATE "C" PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    state      text NOT NULL
) WITH (fillfactor = 50);

-- Wakes up a relay that sleeps. NOTIFY in every commit would have all commits wait for each other, so it is sent only while
-- somebody sleeps: then a lock is held that this cannot share. One who inserts while all are awake holds a share of it until
-- the end of the transaction, and nobody goes to sleep before that. The lock's number is made of the table's name.
--
-- PostgreSQL cannot prepare a transaction that has notified. Where transactions that write here are prepared:
--   ALTER DATABASE shop SET outbox.two_phase = 'on';
-- Then they notify nothing, and relays look for them.
CREATE OR REPLACE FUNCTION {call}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('outbox.two_phase', TRUE) = 'on' THEN
        RETURN NULL;
    END IF;
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

-- The same for the log, with a lock of its own: a relay whose publishers have nothing to do waits for a notification.
DO $do$
BEGIN
    DROP TRIGGER IF EXISTS {events_log_written} ON {log};
    EXECUTE format(
        'CREATE TRIGGER {events_log_written} AFTER INSERT ON {log} FOR EACH STATEMENT '
        'WHEN (NOT pg_try_advisory_xact_lock_shared(%s)) EXECUTE FUNCTION {call}()',
        (SELECT hashtextextended(n.nspname || '.' || c.relname, 13) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = '{log}'::regclass));
END
$do$;
