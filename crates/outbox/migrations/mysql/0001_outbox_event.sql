-- The events. Writers in any language may set: event_id, event_type, aggregate_type, aggregate_id,
-- tenant_id, ordering_key, correlation_id, dedup_key, headers, payload or payload_bytes with
-- content_type, occurred_at, available_at, expires_at. All other columns belong to the relay. Times
-- are UTC. The minimum is:
--   INSERT INTO outbox_event (event_type, payload) VALUES ('order.placed', '[42]');
CREATE TABLE IF NOT EXISTS {events} (
    -- Order of the table.
    seq            bigint NOT NULL AUTO_INCREMENT,
    event_id       varchar(36) NOT NULL DEFAULT (uuid()),
    event_type     varchar(255) NOT NULL,
    aggregate_type varchar(64) NOT NULL DEFAULT '__GLOBAL__',
    aggregate_id   varchar(128),
    tenant_id      varchar(64),
    ordering_key   varchar(255),
    correlation_id varchar(255),
    dedup_key      varchar(255),
    headers        longtext,
    -- Text, not JSON: MySQL's JSON type reorders keys and rewrites numbers.
    payload        longtext,
    payload_bytes  longblob,
    content_type   varchar(255),
    status         smallint NOT NULL DEFAULT 0,
    attempts       integer NOT NULL DEFAULT 0,
    occurred_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    created_at     datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    available_at   datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    expires_at     datetime(6),
    done_at        datetime(6),
    last_error     text,
    locked_by      varchar(128),
    locked_until   datetime(6),
    -- Increases with every claim: fences a holder that settles too late.
    claims         integer NOT NULL DEFAULT 0,
    -- Number of starts of its handler since a holder vanished.
    crashes        integer NOT NULL DEFAULT 0,
    -- MySQL has no partial indexes: 0 pending, 3 dead, NULL done, so that one index serves both and
    -- provides the order of a claim (a sort would lock every candidate). Stored: MariaDB 10.11
    -- loses rows when it searches by an index on a virtual column and then sorts, while another
    -- session has an older transaction open.
    lane           tinyint GENERATED ALWAYS AS (CASE WHEN status IN (0, 2) THEN 0 WHEN status = 3 THEN 3 END) STORED,
    PRIMARY KEY (seq),
    UNIQUE KEY {events_id} (event_id),
    UNIQUE KEY {events_dedup} (dedup_key),
    KEY {events_due} (lane, available_at, seq),
    KEY {events_key} (ordering_key, lane, seq),
    KEY {events_done} (done_at),
    CHECK (event_type <> ''),
    CHECK (status BETWEEN 0 AND 3),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    -- No check of the JSON: JSON_VALID refuses documents that are nested more than 32 deep
    -- (MariaDB) or 100 deep (MySQL).
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL))
) ENGINE = InnoDB {exact};

-- Named leases: holder, epoch and expiry.
CREATE TABLE IF NOT EXISTS {leases} (
    name       varchar(255) NOT NULL PRIMARY KEY,
    holder     varchar(128),
    epoch      bigint NOT NULL,
    held_until datetime(6)
) ENGINE = InnoDB {exact};

-- Rows to lock while an event with an ordering key is written, so that the events of a key become
-- visible in the order of their sequence numbers. Keys share rows by hash.
CREATE TABLE IF NOT EXISTS {keys} (slot smallint NOT NULL PRIMARY KEY) ENGINE = InnoDB;
INSERT IGNORE INTO {keys} (slot)
    WITH RECURSIVE n (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM n WHERE slot < 511) SELECT slot FROM n;
