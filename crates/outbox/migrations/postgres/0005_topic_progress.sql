-- Where each publisher stands in each topic of the log, and who leads it. People may change `status`:
--   UPDATE outbox_topic_progress SET status = 'PAUSED' WHERE publisher = 'KafkaPublisher';
--   UPDATE outbox_topic_progress SET status = 'ACTIVE', error_count = 0, last_error = NULL WHERE publisher = 'KafkaPublisher';
-- Everything else belongs to the relay.
CREATE TABLE IF NOT EXISTS {progress} (
    topic         varchar(100) COLLATE "C" NOT NULL CHECK (topic <> ''),
    publisher     varchar(100) COLLATE "C" NOT NULL CHECK (publisher <> ''),
    status        varchar(16) NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'PAUSED', 'FAILED')),
    -- Everything up to here was published, or is not for it.
    last_position bigint NOT NULL DEFAULT 0 CHECK (last_position >= 0),
    error_count   integer NOT NULL DEFAULT 0,
    last_error    text,
    leader        varchar(128),
    -- Rises with every leader and every reset: the fence against one that comes back too late.
    epoch         bigint NOT NULL DEFAULT 0,
    leader_until  timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the position last moved.
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic, publisher)
) WITH (
    -- Few rows, changed all the time: room on each page, and a vacuum that keeps up.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 1000
);
