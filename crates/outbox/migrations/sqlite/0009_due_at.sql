-- The earliest delivery time that the writer set; NULL: immediately. Retries, snoozes and replays
-- move available_at, and some of them leave status and attempts unchanged, so that no other column
-- distinguishes a delay from them.
ALTER TABLE {events} ADD COLUMN due_at text CHECK (due_at GLOB '????-??-?? ??:??:??*');
