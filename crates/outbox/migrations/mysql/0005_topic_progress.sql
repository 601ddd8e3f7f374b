-- Where each publisher stands in each topic of the log, and who leads it. People may change `status`:
--   UPDATE outbox_topic_progress SET status = 'PAUSED' WHERE publisher = 'KafkaPublisher';
--   UPDATE outbox_topic_progress SET status = 'ACTIVE', error_count = 0, last_error = NULL WHERE publisher = 'KafkaPublisher';
-- Everything else belongs to the relay.
CREATE TABLE IF NOT EXISTS {progress} (
    topic         varchar(100) NOT NULL,
    publisher     varchar(100) NOT NULL,
    status        varchar(16) NOT NULL DEFAULT 'ACTIVE',
    -- Everything up to here was published, or is not for it.
    last_position bigint NOT NULL DEFAULT 0,
    error_count   integer NOT NULL DEFAULT 0,
    last_error    text,
    leader        varchar(128),
    -- Rises with every leader and every reset: the fence against one that comes back too late.
    epoch         bigint NOT NULL DEFAULT 0,
    leader_until  datetime(6),
    created_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    -- When the position last moved.
    updated_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    PRIMARY KEY (topic, publisher),
    CHECK (topic <> ''),
    CHECK (publisher <> ''),
    CHECK (status IN ('ACTIVE', 'PAUSED', 'FAILED')),
    CHECK (last_position >= 0)
) ENGINE = InnoDB {exact};
