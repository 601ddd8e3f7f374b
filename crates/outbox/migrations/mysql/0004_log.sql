CREATE TABLE IF NOT EXISTS {log} (position bigint PRIMARY KEY, stored_at datetime(6) NOT NULL) ENGINE = InnoDB;
