-- Running relays and the state that they announce.
CREATE TABLE IF NOT EXISTS {nodes} (
    node       varchar(128) NOT NULL PRIMARY KEY,
    started_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    seen_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    state      mediumtext NOT NULL
) ENGINE = InnoDB {exact};
