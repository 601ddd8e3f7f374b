-- Order per key for writers in every language: the first INSERT of a key is delivered first, even
-- if it commits last. Writers of one key wait for each other until they commit, and the sequence
-- number of a row is drawn after the wait, so that the rows of a key become visible in the order of
-- their sequence numbers.
--
-- While this sequence has a value, rows with an aggregate and no key get the aggregate as their
-- key. A relay in mode `ordered` draws the value. To undo this:
--   SELECT setval('outbox_event_by_aggregate', 1, FALSE);
-- A sequence, because the condition of a trigger can read it without a query. Writers need SELECT
-- on it.
CREATE SEQUENCE IF NOT EXISTS {by_aggregate} AS bigint CACHE 1;
GRANT SELECT ON SEQUENCE {by_aggregate} TO PUBLIC;

-- The function runs with the privileges of its owner, because writers have none on the sequence of
-- the table, so every name in it is schema-qualified. Names are filled in here: a trigger does not
-- know the sequence of its table.
DO $do$
BEGIN
    EXECUTE format($create$
CREATE OR REPLACE FUNCTION {order_key}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $body$
DECLARE
    -- Approximate number of locks that this transaction has taken here.
    taken integer := COALESCE(NULLIF(pg_catalog.current_setting('outbox.key_locks', TRUE), ''), '0')::pg_catalog.int4;
BEGIN
    IF NEW.ordering_key IS NULL THEN
        NEW.ordering_key := pg_catalog.concat(COALESCE(NEW.aggregate_type, '__GLOBAL__'), '/', NEW.aggregate_id);
    END IF;
    IF taken OPERATOR(pg_catalog.>=) 2000 THEN
        -- Most of them may be of the same keys.
        SELECT pg_catalog.count(*) INTO taken FROM pg_catalog.pg_locks l
        WHERE l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() AND l.locktype OPERATOR(pg_catalog.=) 'advisory';
    END IF;
    IF taken OPERATOR(pg_catalog.>=) 2000 THEN
        -- More would fill the server's lock table. This lock excludes all other writers of keys.
        PERFORM pg_catalog.pg_advisory_xact_lock(%1$s);
    ELSE
        PERFORM pg_catalog.pg_advisory_xact_lock_shared(%1$s);
        PERFORM pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(NEW.ordering_key, 1));
        PERFORM pg_catalog.set_config('outbox.key_locks', (taken OPERATOR(pg_catalog.+) 1)::pg_catalog.text, TRUE);
    END IF;
    -- Not for rows of a backup, which have their original numbers: none of those has been drawn
    -- yet.
    IF NEW.seq OPERATOR(pg_catalog.<=) pg_catalog.pg_sequence_last_value(%2$L::pg_catalog.regclass) THEN
        NEW.seq := pg_catalog.nextval(%2$L::pg_catalog.regclass);
    END IF;
    RETURN NEW;
END $body$
$create$,
        (SELECT hashtextextended(n.nspname || '.' || c.relname, 17) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = '{events}'::regclass),
        pg_get_serial_sequence('{events}', 'seq'));
    DROP TRIGGER IF EXISTS {events_order} ON {events};
    EXECUTE format(
        'CREATE TRIGGER {events_order} BEFORE INSERT ON {events} FOR EACH ROW '
        'WHEN (NEW.ordering_key IS NOT NULL OR (NEW.aggregate_id IS NOT NULL AND pg_sequence_last_value(%L::regclass) IS NOT NULL)) '
        'EXECUTE FUNCTION {order_key}()',
        (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = '{by_aggregate}'::regclass));
END $do$;

-- Wakes up relays whose publishers are idle, like the trigger on the events, with a separate lock.
--
-- PostgreSQL cannot prepare a transaction that has notified. Where transactions that write here are
-- prepared:
--   ALTER DATABASE shop SET outbox.two_phase = 'on';
-- These transactions then do not notify, and relays poll.
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
    DROP TRIGGER IF EXISTS {events_log_written} ON {log};
    EXECUTE format(
        'CREATE TRIGGER {events_log_written} AFTER INSERT ON {log} FOR EACH STATEMENT '
        'WHEN (NOT pg_try_advisory_xact_lock_shared(%s)) EXECUTE FUNCTION {call}()',
        (SELECT hashtextextended(n.nspname || '.' || c.relname, 13) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = '{log}'::regclass));
END
$do$;
