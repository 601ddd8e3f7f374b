CREATE TABLE IF NOT EXISTS {log} (position integer PRIMARY KEY, stored_at text NOT NULL) STRICT;
