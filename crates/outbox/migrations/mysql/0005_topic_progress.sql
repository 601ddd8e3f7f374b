-- Position and leader of each publisher in each topic of the log. Operators may change `status`:
--   UPDATE outbox_topic_progress SET status = 'PAUSED' WHERE publisher = 'KafkaPublisher';
--   UPDATE outbox_topic_progress SET status = 'ACTIVE', error_count = 0, last_error = NULL WHERE publisher = 'KafkaPublisher';
-- All other columns belong to the relay.
CREATE TABLE IF NOT EXISTS {progress} (
    topic         varchar(100) NOT NULL,
    publisher     varchar(100) NOT NULL,
    status        varchar(16) NOT NULL DEFAULT 'ACTIVE',
    -- Every event up to here was published, or is not selected by the topic.
    last_position bigint NOT NULL DEFAULT 0,
    error_count   integer NOT NULL DEFAULT 0,
    last_error    text,
    leader        varchar(128),
    -- Increases with every leader and every reset: fences a leader that saves too late.
    epoch         bigint NOT NULL DEFAULT 0,
    leader_until  datetime(6),
    created_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    -- When the position last changed.
    updated_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    PRIMARY KEY (topic, publisher),
    CHECK (topic <> ''),
    CHECK (publisher <> ''),
    CHECK (status IN ('ACTIVE', 'PAUSED', 'FAILED')),
    CHECK (last_position >= 0)
) ENGINE = InnoDB {exact};
