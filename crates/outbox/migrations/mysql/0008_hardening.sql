-- Events of the log that cannot be decoded and that publishers have skipped.
CREATE TABLE IF NOT EXISTS {log_unreadable} (
    position bigint NOT NULL PRIMARY KEY,
    reason   text NOT NULL,
    noted_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6))
) ENGINE = InnoDB {exact};

-- Values that no relay can handle are refused on write: dates without a day or a month, which some
-- SQL modes accept, and counters near the limit of their type. Rows with such values are repaired
-- first. READ COMMITTED: the statement reads all rows, and keeps locks only on those that it
-- repairs.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
UPDATE {events} SET
    occurred_at = CASE WHEN YEAR(occurred_at) * MONTH(occurred_at) * DAYOFMONTH(occurred_at) > 0 THEN occurred_at ELSE utc_timestamp(6) END,
    created_at = CASE WHEN YEAR(created_at) * MONTH(created_at) * DAYOFMONTH(created_at) > 0 THEN created_at ELSE utc_timestamp(6) END,
    available_at = CASE WHEN YEAR(available_at) * MONTH(available_at) * DAYOFMONTH(available_at) > 0 THEN available_at ELSE utc_timestamp(6) END,
    expires_at = CASE WHEN YEAR(expires_at) * MONTH(expires_at) * DAYOFMONTH(expires_at) > 0 THEN expires_at END,
    claims = CASE WHEN claims BETWEEN 0 AND 1000000000 THEN claims ELSE 1 END,
    attempts = LEAST(GREATEST(attempts, 0), 1000000000),
    crashes = LEAST(GREATEST(crashes, 0), 1000000000)
WHERE NOT (
    claims BETWEEN 0 AND 1000000000 AND attempts BETWEEN 0 AND 1000000000 AND crashes BETWEEN 0 AND 1000000000
    AND COALESCE(YEAR(occurred_at) * MONTH(occurred_at) * DAYOFMONTH(occurred_at), 0) > 0
    AND COALESCE(YEAR(created_at) * MONTH(created_at) * DAYOFMONTH(created_at), 0) > 0
    AND COALESCE(YEAR(available_at) * MONTH(available_at) * DAYOFMONTH(available_at), 0) > 0
    AND (expires_at IS NULL OR COALESCE(YEAR(expires_at) * MONTH(expires_at) * DAYOFMONTH(expires_at), 0) > 0));

-- Last: its own error shows whether it has run before.
ALTER TABLE {events}
    ADD CONSTRAINT {events_times} CHECK (
        COALESCE(YEAR(occurred_at) * MONTH(occurred_at) * DAYOFMONTH(occurred_at), 0) > 0
        AND COALESCE(YEAR(created_at) * MONTH(created_at) * DAYOFMONTH(created_at), 0) > 0
        AND COALESCE(YEAR(available_at) * MONTH(available_at) * DAYOFMONTH(available_at), 0) > 0
        AND (expires_at IS NULL OR COALESCE(YEAR(expires_at) * MONTH(expires_at) * DAYOFMONTH(expires_at), 0) > 0)),
    ADD CONSTRAINT {events_counters} CHECK (
        claims BETWEEN 0 AND 1000000000 AND attempts BETWEEN 0 AND 1000000000 AND crashes BETWEEN 0 AND 1000000000);
