-- Whether the event is a step of a join, which is then counted when the event is settled; and the
-- node that settled it.
ALTER TABLE {events} ADD COLUMN IF NOT EXISTS joined smallint NOT NULL DEFAULT 0;
ALTER TABLE {events} ADD COLUMN IF NOT EXISTS done_by varchar(128);

-- Joins: number of expected and settled steps, and the follow-up to write with the last step.
CREATE TABLE IF NOT EXISTS {joins} (
    join_id         varchar(36) COLLATE "C" PRIMARY KEY,
    grouping_key    varchar(255) COLLATE "C",
    expected_steps  integer NOT NULL CHECK (expected_steps > 0),
    attached_steps  integer NOT NULL DEFAULT 0,
    completed_steps integer NOT NULL DEFAULT 0 CHECK (completed_steps >= 0),
    failed_steps    integer NOT NULL DEFAULT 0 CHECK (failed_steps >= 0),
    -- 0 pending, 1 completed, 2 failed, 3 cancelled.
    status          smallint NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
    metadata        text,
    -- NULL until the follow-up is set. 1: a failed step fails the join.
    strict          smallint,
    -- The follow-ups: an event each, as JSON.
    on_complete     text,
    on_fail         text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (completed_steps + failed_steps <= attached_steps),
    CHECK (attached_steps <= expected_steps)
);
CREATE INDEX IF NOT EXISTS {events_join_group} ON {joins} (grouping_key, join_id) WHERE grouping_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS {events_join_closed} ON {joins} (updated_at) WHERE status <> 0;

-- The steps of joins. `home` is the name of the join's database; empty if it is this one.
CREATE TABLE IF NOT EXISTS {members} (
    join_id    varchar(36) COLLATE "C" NOT NULL,
    event_id   varchar(36) COLLATE "C" NOT NULL,
    home       varchar(64) NOT NULL DEFAULT '',
    -- 0 pending, 1 completed, 2 failed.
    status     smallint NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 2),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (join_id, event_id)
);
CREATE INDEX IF NOT EXISTS {events_step_event} ON {members} (event_id);
CREATE INDEX IF NOT EXISTS {events_step_away} ON {members} (updated_at) WHERE home <> '' AND status <> 0;
