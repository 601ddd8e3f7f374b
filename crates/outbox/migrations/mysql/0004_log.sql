-- The event log: permanent events in one order, with tags. Writers in other languages draw the
-- position themselves, which blocks all other appends until the end of their transaction, and write
-- the tags twice: into the row, and one by one into the table by which queries find them. There is
-- no trigger for this, because servers with a binary log let only administrators create one. In one
-- transaction:
--   UPDATE outbox_log_head SET position = LAST_INSERT_ID(position + 1);
--   SET @position = LAST_INSERT_ID();
--   INSERT INTO outbox_log (position, event_type, tags, payload)
--       VALUES (@position, 'DepositMade', '["wallet_id=w1"]', '{"amount": 5}');
--   INSERT INTO outbox_log_tag (tag, position) VALUES ('wallet_id=w1', @position);
CREATE TABLE IF NOT EXISTS {log} (
    position       bigint NOT NULL,
    event_id       varchar(36) NOT NULL DEFAULT (uuid()),
    event_type     varchar(255) NOT NULL,
    -- A JSON array of texts, each name=value.
    tags           mediumtext NOT NULL DEFAULT ('[]'),
    aggregate_type varchar(64) NOT NULL DEFAULT '__GLOBAL__',
    aggregate_id   varchar(128),
    tenant_id      varchar(64),
    ordering_key   varchar(255),
    correlation_id varchar(255),
    headers        longtext,
    -- Text, not JSON: MySQL's JSON type reorders keys and rewrites numbers.
    payload        longtext,
    payload_bytes  longblob,
    content_type   varchar(255),
    occurred_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    created_at     datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    PRIMARY KEY (position),
    UNIQUE KEY {events_log_id} (event_id),
    KEY {events_log_type} (event_type, position),
    -- A row without a position fails, also where the server would insert a 0.
    CHECK (position > 0),
    CHECK (event_type <> ''),
    CHECK (JSON_VALID(tags)),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL))
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {log_tags} (
    tag      varchar(255) NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (tag, position)
) ENGINE = InnoDB {exact};

-- The last position. Locked by an append until the end of its transaction, so that positions are
-- committed in order.
CREATE TABLE IF NOT EXISTS {log_head} (
    id       tinyint NOT NULL PRIMARY KEY CHECK (id = 1),
    position bigint NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO {log_head} (id, position) VALUES (1, 0);
