-- Group leases. A row here leases the events it lists: events that were never held before, whose
-- `claims` are 0. A transaction that removes a row first updates those of its events that are still
-- pending.
CREATE TABLE IF NOT EXISTS {batches} (
    batch_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner      varchar(128) NOT NULL,
    held_until timestamptz NOT NULL,
    -- Range of their due times, by which the index finds them.
    due_from   timestamptz NOT NULL,
    due_to     timestamptz NOT NULL,
    seqs       bigint[] NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
-- A row normally lives for less than a second: not worth compressing.
ALTER TABLE {batches} ALTER COLUMN seqs SET STORAGE EXTERNAL;
