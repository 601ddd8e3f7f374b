-- Order per key for writers in every language: the first INSERT of a key is delivered first, even
-- if it commits last. Writers of one key wait for each other until they commit, and the sequence
-- number of a row is drawn after the wait, so that the rows of a key become visible in the order of
-- their sequence numbers.
--
-- While the slot -1 exists, rows with an aggregate and no key get the aggregate as their key. A
-- relay in mode `ordered` adds that slot. To undo this:
--   DELETE FROM outbox_event_key WHERE slot = -1;
CREATE TRIGGER {order_trigger} BEFORE INSERT ON {events} FOR EACH ROW
BEGIN
    IF NEW.ordering_key IS NULL AND NEW.aggregate_id IS NOT NULL THEN
        IF EXISTS (SELECT 1 FROM {keys} k WHERE k.slot = -1) THEN
            SET NEW.ordering_key = CONCAT(COALESCE(NEW.aggregate_type, '__GLOBAL__'), '/', NEW.aggregate_id);
        END IF;
    END IF;
    IF NEW.ordering_key IS NOT NULL THEN
        UPDATE {keys} k SET k.slot = k.slot WHERE k.slot = CRC32(NEW.ordering_key) % 16384;
    END IF;
END;
