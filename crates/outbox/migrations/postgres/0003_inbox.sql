-- Events that consumers have already handled. The row is written in the transaction of the
-- consumer's work.
CREATE TABLE IF NOT EXISTS {inbox} (
    consumer    varchar(128) COLLATE "C" NOT NULL,
    event_id    varchar(255) COLLATE "C" NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX IF NOT EXISTS {events_inbox_received} ON {inbox} (received_at);
