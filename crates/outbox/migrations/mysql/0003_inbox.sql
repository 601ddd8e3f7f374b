-- Events that consumers have already handled. The row is written in the transaction of the
-- consumer's work.
CREATE TABLE IF NOT EXISTS {inbox} (
    consumer    varchar(128) NOT NULL,
    event_id    varchar(255) NOT NULL,
    received_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    -- The call that wrote the row: MySQL does not report which rows of an INSERT were new.
    batch       bigint,
    PRIMARY KEY (consumer, event_id),
    KEY {events_inbox_received} (received_at)
) ENGINE = InnoDB {exact};
