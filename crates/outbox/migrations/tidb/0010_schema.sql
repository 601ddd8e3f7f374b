-- The tables on TiDB as of version 10; `migrations/mysql` describes them. Differences:
--
-- - Times have CURRENT_TIMESTAMP(6) as their default, because TiDB accepts no other function there.
--   That is the time in the session's time zone, and times are UTC: writers in other languages set
--   `time_zone = '+00:00'` first.
-- - Numbers are drawn in one place for all servers (AUTO_ID_CACHE 1), so that they increase over
--   all of them.
-- - The tags of the log have an index by position, because TiDB cannot read them from the event.
-- - No trigger: TiDB has none. Checks apply only with `tidb_enable_check_constraint = ON`.
CREATE TABLE IF NOT EXISTS {events} (
    seq            bigint NOT NULL AUTO_INCREMENT,
    event_id       varchar(36) NOT NULL DEFAULT (uuid()),
    event_type     varchar(255) NOT NULL,
    aggregate_type varchar(64) DEFAULT '__GLOBAL__',
    aggregate_id   varchar(128),
    tenant_id      varchar(64),
    ordering_key   varchar(255),
    correlation_id varchar(255),
    dedup_key      varchar(255),
    headers        longtext,
    payload        longtext,
    payload_bytes  longblob,
    content_type   varchar(255),
    status         smallint NOT NULL DEFAULT 0,
    attempts       integer NOT NULL DEFAULT 0,
    occurred_at    datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    created_at     datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    available_at   datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    expires_at     datetime(6),
    done_at        datetime(6),
    last_error     text,
    locked_by      varchar(128),
    locked_until   datetime(6),
    claims         integer NOT NULL DEFAULT 0,
    crashes        integer NOT NULL DEFAULT 0,
    lane           tinyint GENERATED ALWAYS AS (CASE WHEN status IN (0, 2) THEN 0 WHEN status = 3 THEN 3 END) STORED,
    joined         smallint NOT NULL DEFAULT 0,
    done_by        varchar(128),
    due_at         datetime(6),
    PRIMARY KEY (seq),
    UNIQUE KEY {events_id} (event_id),
    UNIQUE KEY {events_dedup} (dedup_key),
    KEY {events_due} (lane, available_at, seq),
    KEY {events_key} (ordering_key, lane, seq),
    KEY {events_done} (done_at),
    CHECK (event_type <> ''),
    CHECK (status BETWEEN 0 AND 3),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL)),
    CONSTRAINT {events_times} CHECK (
        COALESCE(YEAR(occurred_at) * MONTH(occurred_at) * DAYOFMONTH(occurred_at), 0) > 0
        AND COALESCE(YEAR(created_at) * MONTH(created_at) * DAYOFMONTH(created_at), 0) > 0
        AND COALESCE(YEAR(available_at) * MONTH(available_at) * DAYOFMONTH(available_at), 0) > 0
        AND (expires_at IS NULL OR COALESCE(YEAR(expires_at) * MONTH(expires_at) * DAYOFMONTH(expires_at), 0) > 0)),
    CONSTRAINT {events_counters} CHECK (
        claims BETWEEN 0 AND 1000000000 AND attempts BETWEEN 0 AND 1000000000 AND crashes BETWEEN 0 AND 1000000000)
) ENGINE = InnoDB {exact} /*T![auto_id_cache] AUTO_ID_CACHE = 1 */;

CREATE TABLE IF NOT EXISTS {leases} (
    name       varchar(255) NOT NULL PRIMARY KEY,
    holder     varchar(128),
    epoch      bigint NOT NULL,
    held_until datetime(6)
) ENGINE = InnoDB {exact};
-- Locked by a relay while it claims events: TiDB cannot skip rows that another relay has locked.
INSERT IGNORE INTO {leases} (name, epoch) VALUES ('claim', 0);

CREATE TABLE IF NOT EXISTS {keys} (slot smallint NOT NULL PRIMARY KEY) ENGINE = InnoDB;
INSERT IGNORE INTO {keys} (slot)
    WITH RECURSIVE n (v) AS (SELECT 0 UNION ALL SELECT v + 1 FROM n WHERE v < 127)
    SELECT a.v * 128 + b.v FROM n a CROSS JOIN n b;

CREATE TABLE IF NOT EXISTS {joins} (
    join_id         varchar(36) NOT NULL PRIMARY KEY,
    grouping_key    varchar(255),
    expected_steps  integer NOT NULL,
    attached_steps  integer NOT NULL DEFAULT 0,
    completed_steps integer NOT NULL DEFAULT 0,
    failed_steps    integer NOT NULL DEFAULT 0,
    status          smallint NOT NULL DEFAULT 0,
    metadata        longtext,
    strict          smallint,
    on_complete     longtext,
    on_fail         longtext,
    created_at      datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at      datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    KEY {events_join_group} (grouping_key, join_id),
    KEY {events_join_closed} (status, updated_at),
    CHECK (expected_steps > 0),
    CHECK (status BETWEEN 0 AND 3),
    CHECK (completed_steps >= 0 AND failed_steps >= 0),
    CHECK (completed_steps + failed_steps <= attached_steps),
    CHECK (attached_steps <= expected_steps)
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {members} (
    join_id    varchar(36) NOT NULL,
    event_id   varchar(36) NOT NULL,
    home       varchar(64) NOT NULL DEFAULT '',
    status     smallint NOT NULL DEFAULT 0,
    created_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (join_id, event_id),
    KEY {events_step_event} (event_id),
    KEY {events_step_away} (home, updated_at),
    CHECK (status BETWEEN 0 AND 2)
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {inbox} (
    consumer    varchar(128) NOT NULL,
    event_id    varchar(255) NOT NULL,
    received_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    batch       bigint,
    PRIMARY KEY (consumer, event_id),
    KEY {events_inbox_received} (received_at)
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {log} (
    position       bigint NOT NULL,
    event_id       varchar(36) NOT NULL DEFAULT (uuid()),
    event_type     varchar(255) NOT NULL,
    tags           mediumtext NOT NULL,
    aggregate_type varchar(64) NOT NULL DEFAULT '__GLOBAL__',
    aggregate_id   varchar(128),
    tenant_id      varchar(64),
    ordering_key   varchar(255),
    correlation_id varchar(255),
    headers        longtext,
    payload        longtext,
    payload_bytes  longblob,
    content_type   varchar(255),
    occurred_at    datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    created_at     datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (position),
    UNIQUE KEY {events_log_id} (event_id),
    KEY {events_log_type} (event_type, position),
    CHECK (position > 0),
    CHECK (event_type <> ''),
    CHECK (JSON_VALID(tags)),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL))
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {log_tags} (
    tag      varchar(255) NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (tag, position),
    KEY {events_log_tag_position} (position)
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {log_head} (
    id       tinyint NOT NULL PRIMARY KEY,
    position bigint NOT NULL,
    CHECK (id = 1)
) ENGINE = InnoDB;
INSERT IGNORE INTO {log_head} (id, position) VALUES (1, 0);

CREATE TABLE IF NOT EXISTS {log_unreadable} (
    position bigint NOT NULL PRIMARY KEY,
    reason   text NOT NULL,
    noted_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {progress} (
    topic         varchar(100) NOT NULL,
    publisher     varchar(100) NOT NULL,
    status        varchar(16) NOT NULL DEFAULT 'ACTIVE',
    last_position bigint NOT NULL DEFAULT 0,
    error_count   integer NOT NULL DEFAULT 0,
    last_error    text,
    leader        varchar(128),
    epoch         bigint NOT NULL DEFAULT 0,
    leader_until  datetime(6),
    created_at    datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at    datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (topic, publisher),
    CHECK (topic <> ''),
    CHECK (publisher <> ''),
    CHECK (status IN ('ACTIVE', 'PAUSED', 'FAILED')),
    CHECK (last_position >= 0)
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {nodes} (
    node       varchar(128) NOT NULL PRIMARY KEY,
    started_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    seen_at    datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    state      mediumtext NOT NULL
) ENGINE = InnoDB {exact};

CREATE TABLE IF NOT EXISTS {attempts} (
    attempt_id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    event_id   varchar(36) NOT NULL,
    failed_at  datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    number     integer NOT NULL,
    node       varchar(128) NOT NULL,
    fatal      smallint NOT NULL DEFAULT 0,
    error      text NOT NULL,
    KEY {events_attempt_event} (event_id, attempt_id),
    KEY {events_attempt_at} (failed_at),
    CHECK (fatal IN (0, 1))
) ENGINE = InnoDB {exact} /*T![auto_id_cache] AUTO_ID_CACHE = 1 */;

CREATE TABLE IF NOT EXISTS {audits} (
    audit_id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    made_at  datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    actor    varchar(255) NOT NULL,
    via      varchar(64) NOT NULL,
    action   varchar(64) NOT NULL,
    target   varchar(255),
    details  mediumtext,
    outcome  text,
    affected bigint
) ENGINE = InnoDB {exact} /*T![auto_id_cache] AUTO_ID_CACHE = 1 */;
