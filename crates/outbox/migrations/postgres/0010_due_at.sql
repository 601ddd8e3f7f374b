-- NULL in aggregate_type is the global aggregate, as when the column is left out: writers in other
-- languages often name every column.
ALTER TABLE {events} ALTER COLUMN aggregate_type DROP NOT NULL;

-- The earliest delivery time that the writer set; NULL: immediately. Retries, snoozes and replays
-- move available_at, and some of them leave status and attempts unchanged, so that no other column
-- distinguishes a delay from them.
ALTER TABLE {events} ADD COLUMN IF NOT EXISTS due_at timestamptz;
