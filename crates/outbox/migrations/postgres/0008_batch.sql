-- Leases of many events at once. A row here leases the events it lists: those that nobody has held before, whose `claims` are 0. Whoever
-- takes it away writes to those of them that are still pending first.
CREATE TABLE IF NOT EXISTS {batches} (
    batch_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner      varchar(128) NOT NULL,
    held_until timestamptz NOT NULL,
    -- Between which times they are due: that is how the index finds them.
    due_from   timestamptz NOT NULL,
    due_to     timestamptz NOT NULL,
    seqs       bigint[] NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
-- It lives for less than a second as a rule: not worth compressing.
ALTER TABLE {batches} ALTER COLUMN seqs SET STORAGE EXTERNAL;
