-- Values that no relay can handle are refused on write: dates that do not exist, such as the 30th
-- of February, counters that no relay writes, and a content type of any length. By a trigger,
-- because SQLite cannot add a CHECK to an existing table. A row that had such a value before is
-- dead-lettered when it is due.
CREATE TRIGGER IF NOT EXISTS {events_values} BEFORE INSERT ON {events} FOR EACH ROW
WHEN strftime('%Y-%m-%d %H:%M:%S', NEW.occurred_at) IS NOT substr(NEW.occurred_at, 1, 19)
    OR strftime('%Y-%m-%d %H:%M:%S', NEW.created_at) IS NOT substr(NEW.created_at, 1, 19)
    OR strftime('%Y-%m-%d %H:%M:%S', NEW.available_at) IS NOT substr(NEW.available_at, 1, 19)
    OR strftime('%Y-%m-%d %H:%M:%S', NEW.expires_at) IS NOT substr(NEW.expires_at, 1, 19)
    OR NEW.claims NOT BETWEEN 0 AND 1000000000 OR NEW.attempts NOT BETWEEN 0 AND 1000000000
    OR NEW.crashes NOT BETWEEN 0 AND 1000000000 OR length(NEW.content_type) > 255
BEGIN
    SELECT RAISE(ABORT, 'outbox: a time is not a valid UTC time, a counter is out of range, or content_type is too long');
END;

CREATE TRIGGER IF NOT EXISTS {events_log_values} BEFORE INSERT ON {log} FOR EACH ROW
WHEN strftime('%Y-%m-%d %H:%M:%S', NEW.occurred_at) IS NOT substr(NEW.occurred_at, 1, 19)
    OR strftime('%Y-%m-%d %H:%M:%S', NEW.created_at) IS NOT substr(NEW.created_at, 1, 19)
    OR length(NEW.content_type) > 255
BEGIN
    SELECT RAISE(ABORT, 'outbox: a time is not a valid UTC time, or content_type is too long');
END;

-- Events of the log that cannot be decoded and that publishers have skipped.
CREATE TABLE IF NOT EXISTS {log_unreadable} (
    position integer PRIMARY KEY,
    reason   text NOT NULL,
    noted_at text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
) STRICT;

-- Created with the table, unless the table is from before the first release.
CREATE INDEX IF NOT EXISTS {events_done_untimed} ON {events} (created_at) WHERE status = 1 AND done_at IS NULL;
