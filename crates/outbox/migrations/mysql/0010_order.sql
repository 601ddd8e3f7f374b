-- More rows to lock while an event with an ordering key is written: keys share rows by CRC32, and
-- two transactions with many keys each should not wait for each other because of that. The trigger
-- that locks them is not part of this migration, because a server may refuse it: see
-- `order_trigger.sql`.
INSERT IGNORE INTO {keys} (slot)
    WITH RECURSIVE n (v) AS (SELECT 0 UNION ALL SELECT v + 1 FROM n WHERE v < 127)
    SELECT a.v * 128 + b.v FROM n a CROSS JOIN n b;
