-- Running relays and the state that they announce.
CREATE TABLE IF NOT EXISTS {nodes} (
    node       text NOT NULL PRIMARY KEY CHECK (length(node) BETWEEN 1 AND 128),
    started_at text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (started_at GLOB '????-??-?? ??:??:??*'),
    seen_at    text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')) CHECK (seen_at GLOB '????-??-?? ??:??:??*'),
    state      text NOT NULL
) STRICT, WITHOUT ROWID;
