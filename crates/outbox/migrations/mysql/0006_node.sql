-- Relays that run, and what they say of themselves: for people. Nothing is decided by it.
CREATE TABLE IF NOT EXISTS {nodes} (
    node       varchar(128) NOT NULL PRIMARY KEY,
    started_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    seen_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    state      mediumtext NOT NULL
) ENGINE = InnoDB {exact};
