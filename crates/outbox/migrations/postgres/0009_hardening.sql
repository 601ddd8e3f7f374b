-- Values that no relay can handle are refused on write. `infinity` is allowed for expires_at, where
-- it means never. NOT VALID: finished rows are not scanned; the rows that a relay may still change
-- are repaired below, while the lock of ALTER TABLE blocks writers.
--
-- PostgreSQL parses the stored expression of a CHECK for every INSERT, so these are as short as
-- they can be: written as ranges per column they cost about 20 µs an INSERT, like this about 5 µs.
ALTER TABLE {events} DROP CONSTRAINT IF EXISTS {events_times};
ALTER TABLE {events} ADD CONSTRAINT {events_times} CHECK (
    LEAST(occurred_at, created_at, available_at, expires_at) >= '0001-01-01 00:00:00+00'
    AND GREATEST(occurred_at, created_at, available_at) < '10000-01-01 00:00:00+00'
) NOT VALID;
ALTER TABLE {events} DROP CONSTRAINT IF EXISTS {events_counters};
ALTER TABLE {events} ADD CONSTRAINT {events_counters} CHECK (
    LEAST(claims, attempts, crashes) >= 0 AND GREATEST(claims, attempts, crashes) <= 1000000000
) NOT VALID;
-- Pending rows and dead rows separately: each statement has the condition of an index, and reads no
-- finished row.
UPDATE {events} SET
    occurred_at = LEAST(GREATEST(occurred_at, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00'),
    created_at = LEAST(GREATEST(created_at, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00'),
    available_at = LEAST(GREATEST(available_at, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00'),
    expires_at = CASE WHEN expires_at IS NOT NULL THEN GREATEST(expires_at, '0001-01-01 00:00:00+00') END,
    claims = CASE WHEN claims BETWEEN 0 AND 1000000000 THEN claims ELSE 1 END,
    attempts = LEAST(GREATEST(attempts, 0), 1000000000),
    crashes = LEAST(GREATEST(crashes, 0), 1000000000)
WHERE status IN (0, 2) AND NOT (
    LEAST(claims, attempts, crashes) >= 0 AND GREATEST(claims, attempts, crashes) <= 1000000000
    AND LEAST(occurred_at, created_at, available_at, expires_at) >= '0001-01-01 00:00:00+00'
    AND GREATEST(occurred_at, created_at, available_at) < '10000-01-01 00:00:00+00');
UPDATE {events} SET
    occurred_at = LEAST(GREATEST(occurred_at, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00'),
    created_at = LEAST(GREATEST(created_at, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00'),
    available_at = LEAST(GREATEST(available_at, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00'),
    expires_at = CASE WHEN expires_at IS NOT NULL THEN GREATEST(expires_at, '0001-01-01 00:00:00+00') END,
    claims = CASE WHEN claims BETWEEN 0 AND 1000000000 THEN claims ELSE 1 END,
    attempts = LEAST(GREATEST(attempts, 0), 1000000000),
    crashes = LEAST(GREATEST(crashes, 0), 1000000000)
WHERE status = 3 AND NOT (
    LEAST(claims, attempts, crashes) >= 0 AND GREATEST(claims, attempts, crashes) <= 1000000000
    AND LEAST(occurred_at, created_at, available_at, expires_at) >= '0001-01-01 00:00:00+00'
    AND GREATEST(occurred_at, created_at, available_at) < '10000-01-01 00:00:00+00');

-- The log is not changed once it is written: publishers skip an old row with such a time, and
-- record it.
ALTER TABLE {log} DROP CONSTRAINT IF EXISTS {events_log_times};
ALTER TABLE {log} ADD CONSTRAINT {events_log_times} CHECK (
    LEAST(occurred_at, created_at) >= '0001-01-01 00:00:00+00'
    AND GREATEST(occurred_at, created_at) < '10000-01-01 00:00:00+00'
) NOT VALID;

-- A position is drawn, never chosen: a row at a position that has not been drawn yet would fail the
-- append that draws it.
CREATE OR REPLACE FUNCTION {log_refuse}() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    RAISE EXCEPTION 'outbox: position % has not been drawn from the sequence yet: leave the position out', NEW.position
        USING ERRCODE = 'check_violation';
END $body$;
DO $do$
BEGIN
    DROP TRIGGER IF EXISTS {events_log_refuse} ON {log};
    EXECUTE format(
        'CREATE TRIGGER {events_log_refuse} BEFORE INSERT ON {log} FOR EACH ROW '
        'WHEN (NEW.position IS NOT NULL AND NEW.position > COALESCE(pg_sequence_last_value(%s::regclass), 0)) '
        'EXECUTE FUNCTION {log_refuse}()',
        quote_literal('{log_seq}'));
END $do$;

-- Events of the log that cannot be decoded and that publishers have skipped.
CREATE TABLE IF NOT EXISTS {log_unreadable} (
    position bigint PRIMARY KEY,
    reason   text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Created with the table, unless the table is from before the first release: then the table is read
-- once here.
CREATE INDEX IF NOT EXISTS {events_done_untimed} ON {events} (created_at) WHERE status = 1 AND done_at IS NULL;
-- The claim lock. A relay that takes events locks this table, which stays empty, until its
-- transaction ends: one relay takes at a time. A lock on a table needs a privilege on that table,
-- whereas every role that may connect can take an advisory lock; unlike a row lock it writes
-- nothing.
CREATE TABLE IF NOT EXISTS {claim_lock} (never boolean);
