-- The time before which the writer does not want the event delivered; NULL: at once. Retries, snoozes and replays move
-- available_at, and some of them leave status and attempts as they were, so that nothing else tells a delay from them.
ALTER TABLE {events} ADD COLUMN due_at text CHECK (due_at GLOB '????-??-?? ??:??:??*');
