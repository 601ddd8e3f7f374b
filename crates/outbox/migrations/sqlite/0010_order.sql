-- Rows with an aggregate and no key get the aggregate as their key while the lease `by_aggregate`
-- exists, which a relay in mode `ordered` adds. To undo this:
--   DELETE FROM outbox_event_lease WHERE name = 'by_aggregate';
-- Writers need no lock for the order of a key: SQLite has one writer at a time.
CREATE TRIGGER IF NOT EXISTS {events_order} AFTER INSERT ON {events} FOR EACH ROW
WHEN NEW.ordering_key IS NULL AND NEW.aggregate_id IS NOT NULL
    AND EXISTS (SELECT 1 FROM {leases} WHERE name = 'by_aggregate')
BEGIN
    UPDATE {events} SET ordering_key = COALESCE(NEW.aggregate_type, '__GLOBAL__') || '/' || NEW.aggregate_id
    WHERE seq = NEW.seq;
END;
