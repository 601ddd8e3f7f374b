-- Events that consumers have already handled. The row is written in the transaction of the
-- consumer's work.
CREATE TABLE IF NOT EXISTS {inbox} (
    consumer    text NOT NULL CHECK (length(consumer) BETWEEN 1 AND 128),
    event_id    text NOT NULL CHECK (length(event_id) BETWEEN 1 AND 255),
    received_at text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (received_at GLOB '????-??-?? ??:??:??*'),
    PRIMARY KEY (consumer, event_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {events_inbox_received} ON {inbox} (received_at);
