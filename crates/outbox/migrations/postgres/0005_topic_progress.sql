-- Position and leader of each publisher in each topic of the log. Operators may change `status`:
--   UPDATE outbox_topic_progress SET status = 'PAUSED' WHERE publisher = 'KafkaPublisher';
--   UPDATE outbox_topic_progress SET status = 'ACTIVE', error_count = 0, last_error = NULL WHERE publisher = 'KafkaPublisher';
-- All other columns belong to the relay.
CREATE TABLE IF NOT EXISTS {progress} (
    topic         varchar(100) COLLATE "C" NOT NULL CHECK (topic <> ''),
    publisher     varchar(100) COLLATE "C" NOT NULL CHECK (publisher <> ''),
    status        varchar(16) NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'PAUSED', 'FAILED')),
    -- Every event up to here was published, or is not selected by the topic.
    last_position bigint NOT NULL DEFAULT 0 CHECK (last_position >= 0),
    error_count   integer NOT NULL DEFAULT 0,
    last_error    text,
    leader        varchar(128),
    -- Increases with every leader and every reset: fences a leader that saves too late.
    epoch         bigint NOT NULL DEFAULT 0,
    leader_until  timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the position last changed.
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic, publisher)
) WITH (
    -- Few rows with frequent updates: free space on each page, and a vacuum that keeps up.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 1000
);
