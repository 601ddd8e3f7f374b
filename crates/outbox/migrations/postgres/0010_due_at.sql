-- NULL in aggregate_type is the global aggregate, as when the column is left out: writers in other languages often name
-- every column.
ALTER TABLE {events} ALTER COLUMN aggregate_type DROP NOT NULL;

-- The time before which the writer does not want the event delivered; NULL: at once. Retries, snoozes and replays move
-- available_at, and some of them leave status and attempts as they were, so that nothing else tells a delay from them.
ALTER TABLE {events} ADD COLUMN IF NOT EXISTS due_at timestamptz;
