-- Joins: number of expected and settled steps, and the follow-up to write with the last step.
CREATE TABLE IF NOT EXISTS {joins} (
    join_id         varchar(36) NOT NULL PRIMARY KEY,
    grouping_key    varchar(255),
    expected_steps  integer NOT NULL,
    attached_steps  integer NOT NULL DEFAULT 0,
    completed_steps integer NOT NULL DEFAULT 0,
    failed_steps    integer NOT NULL DEFAULT 0,
    -- 0 pending, 1 completed, 2 failed, 3 cancelled.
    status          smallint NOT NULL DEFAULT 0,
    metadata        longtext,
    -- NULL until the follow-up is set. 1: a failed step fails the join.
    strict          smallint,
    -- The follow-ups: an event each, as JSON.
    on_complete     longtext,
    on_fail         longtext,
    created_at      datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    updated_at      datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    KEY {events_join_group} (grouping_key, join_id),
    KEY {events_join_closed} (status, updated_at),
    CHECK (expected_steps > 0),
    CHECK (status BETWEEN 0 AND 3),
    CHECK (completed_steps >= 0 AND failed_steps >= 0),
    CHECK (completed_steps + failed_steps <= attached_steps),
    CHECK (attached_steps <= expected_steps)
) ENGINE = InnoDB {exact};

-- The steps of joins. `home` is the name of the join's database; empty if it is this one.
CREATE TABLE IF NOT EXISTS {members} (
    join_id    varchar(36) NOT NULL,
    event_id   varchar(36) NOT NULL,
    home       varchar(64) NOT NULL DEFAULT '',
    -- 0 pending, 1 completed, 2 failed.
    status     smallint NOT NULL DEFAULT 0,
    created_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    updated_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    PRIMARY KEY (join_id, event_id),
    KEY {events_step_event} (event_id),
    KEY {events_step_away} (home, updated_at),
    CHECK (status BETWEEN 0 AND 2)
) ENGINE = InnoDB {exact};

-- Whether the event is a step of a join, which is then counted when the event is settled; and the
-- node that settled it. Last, and both in one statement: DDL commits by itself here, and a second
-- run of this script may only fail on a statement that is already complete.
ALTER TABLE {events} ADD COLUMN joined smallint NOT NULL DEFAULT 0, ADD COLUMN done_by varchar(128);
