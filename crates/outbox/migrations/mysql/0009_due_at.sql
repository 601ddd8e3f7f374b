-- NULL in aggregate_type is the global aggregate, as when the column is left out: writers in other
-- languages often name every column. InnoDB rebuilds the table for this, with concurrent reads and
-- writes.
--
-- due_at is the earliest delivery time that the writer set; NULL: immediately. Retries, snoozes and
-- replays move available_at, and some of them leave status and attempts unchanged, so that no other
-- column distinguishes a delay from them.
--
-- One statement: its own error shows whether it has run before.
ALTER TABLE {events}
    MODIFY aggregate_type varchar(64) DEFAULT '__GLOBAL__',
    ADD COLUMN due_at datetime(6);
