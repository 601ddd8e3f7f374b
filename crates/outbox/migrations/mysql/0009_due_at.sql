-- NULL in aggregate_type is the global aggregate, as when the column is left out: writers in other languages often name
-- every column. InnoDB rebuilds the table for it, while others read and write.
--
-- due_at is the time before which the writer does not want the event delivered; NULL: at once. Retries, snoozes and replays
-- move available_at, and some of them leave status and attempts as they were, so that nothing else tells a delay from
-- them.
--
-- One statement: whether it has run before is told by its own error.
ALTER TABLE {events}
    MODIFY aggregate_type varchar(64) DEFAULT '__GLOBAL__',
    ADD COLUMN due_at datetime(6);
