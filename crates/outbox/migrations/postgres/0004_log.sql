CREATE TABLE IF NOT EXISTS {log} (position bigint PRIMARY KEY, stored_at timestamptz NOT NULL);
