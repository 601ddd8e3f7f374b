-- Position and leader of each publisher in each topic of the log. Operators may change `status`:
--   UPDATE outbox_topic_progress SET status = 'PAUSED' WHERE publisher = 'KafkaPublisher';
--   UPDATE outbox_topic_progress SET status = 'ACTIVE', error_count = 0, last_error = NULL WHERE publisher = 'KafkaPublisher';
-- All other columns belong to the relay.
CREATE TABLE IF NOT EXISTS {progress} (
    topic         text NOT NULL CHECK (length(topic) BETWEEN 1 AND 100),
    publisher     text NOT NULL CHECK (length(publisher) BETWEEN 1 AND 100),
    status        text NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'PAUSED', 'FAILED')),
    -- Every event up to here was published, or is not selected by the topic.
    last_position integer NOT NULL DEFAULT 0 CHECK (last_position >= 0),
    error_count   integer NOT NULL DEFAULT 0,
    last_error    text,
    leader        text CHECK (length(leader) <= 128),
    -- Increases with every leader and every reset: fences a leader that saves too late.
    epoch         integer NOT NULL DEFAULT 0,
    leader_until  text CHECK (leader_until GLOB '????-??-?? ??:??:??*'),
    created_at    text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (created_at GLOB '????-??-?? ??:??:??*'),
    -- When the position last changed.
    updated_at    text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (updated_at GLOB '????-??-?? ??:??:??*'),
    PRIMARY KEY (topic, publisher)
) STRICT, WITHOUT ROWID;
