-- The tables for distributed databases with the protocol of PostgreSQL: CockroachDB and YugabyteDB.
-- They have the same columns and indexes as on PostgreSQL, but no advisory locks, no notifications
-- and no order that depends on a sequence. docs/guide/distributed.md lists the differences.
CREATE TABLE IF NOT EXISTS {events} (
    event_id       varchar(36) NOT NULL DEFAULT gen_random_uuid()::text,
    -- Sequences of distributed databases assign numbers in blocks, so that a greater number does
    -- not mean a later row. The trigger below ensures this order among the events of a key.
    seq            bigint GENERATED ALWAYS AS IDENTITY,
    event_type     varchar(255) NOT NULL CHECK (event_type <> ''),
    aggregate_type varchar(64) DEFAULT '__GLOBAL__',
    aggregate_id   varchar(128),
    tenant_id      varchar(64),
    ordering_key   varchar(255),
    correlation_id varchar(255),
    dedup_key      varchar(255),
    headers        json,
    payload        json,
    payload_bytes  bytea,
    content_type   varchar(255),
    status         smallint NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
    attempts       integer NOT NULL DEFAULT 0,
    occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    available_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz,
    done_at        timestamptz,
    last_error     text,
    locked_by      varchar(128),
    locked_until   timestamptz,
    claims         integer NOT NULL DEFAULT 0,
    crashes        integer NOT NULL DEFAULT 0,
    joined         smallint NOT NULL DEFAULT 0,
    done_by        varchar(128),
    due_at         timestamptz,
    PRIMARY KEY (event_id),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL)),
    CONSTRAINT {events_times} CHECK (
        LEAST(occurred_at, created_at, available_at, expires_at) >= '0001-01-01 00:00:00+00'
        AND GREATEST(occurred_at, created_at, available_at) < '10000-01-01 00:00:00+00'),
    CONSTRAINT {events_counters} CHECK (
        LEAST(claims, attempts, crashes) >= 0 AND GREATEST(claims, attempts, crashes) <= 1000000000)
);
CREATE INDEX IF NOT EXISTS {events_due} ON {events} (available_at, seq) WHERE status IN (0, 2);
CREATE INDEX IF NOT EXISTS {events_key} ON {events} (ordering_key, seq) WHERE ordering_key IS NOT NULL AND status <> 1;
CREATE UNIQUE INDEX IF NOT EXISTS {events_dedup} ON {events} (dedup_key) WHERE dedup_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS {events_dead} ON {events} (seq) WHERE status = 3;
CREATE INDEX IF NOT EXISTS {events_done} ON {events} (done_at) WHERE done_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS {events_done_untimed} ON {events} (created_at) WHERE status = 1 AND done_at IS NULL;

CREATE TABLE IF NOT EXISTS {leases} (
    name       varchar(255) PRIMARY KEY,
    holder     varchar(128),
    epoch      bigint NOT NULL,
    held_until timestamptz
);

-- A writer of an event with an ordering key locks the row of the slot of the key until the end of
-- its transaction. `last` is the greatest number of an event of the slot. The row of slot -1 exists
-- while rows with an aggregate and no ordering key get the aggregate as their key.
CREATE TABLE IF NOT EXISTS {key_slots} (
    slot integer PRIMARY KEY,
    last bigint NOT NULL
);
INSERT INTO {key_slots} (slot, last) SELECT n, 0 FROM generate_series(0, 4095) n ON CONFLICT (slot) DO NOTHING;

-- Draws numbers until one is greater than those of the earlier events of the slot: at most as many
-- as the session has in its block. Writers need USAGE on the sequence.
DROP TRIGGER IF EXISTS {events_order} ON {events};
CREATE OR REPLACE FUNCTION {order_key}() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    digest bytea;
    key_slot integer;
    newest bigint;
    draws integer := 0;
BEGIN
    IF NEW.ordering_key IS NULL THEN
        IF NOT EXISTS (SELECT 1 FROM {key_slots} k WHERE k.slot = -1) THEN
            RETURN NEW;
        END IF;
        NEW.ordering_key := concat(COALESCE(NEW.aggregate_type, '__GLOBAL__'), '/', NEW.aggregate_id);
    END IF;
    digest := decode(md5(NEW.ordering_key), 'hex');
    key_slot := (get_byte(digest, 0) << 4) + (get_byte(digest, 1) >> 4);
    SELECT k.last INTO newest FROM {key_slots} k WHERE k.slot = key_slot FOR UPDATE;
    WHILE NEW.seq <= newest LOOP
        IF draws = 100000 THEN
            RAISE EXCEPTION 'outbox: the sequence {identity} is far behind number % of an event: restart it after that number', newest;
        END IF;
        NEW.seq := nextval('{identity}');
        draws := draws + 1;
    END LOOP;
    UPDATE {key_slots} SET last = NEW.seq WHERE slot = key_slot;
    RETURN NEW;
END $body$;
CREATE TRIGGER {events_order} BEFORE INSERT ON {events} FOR EACH ROW
    WHEN (NEW.ordering_key IS NOT NULL OR NEW.aggregate_id IS NOT NULL) EXECUTE FUNCTION {order_key}();

CREATE TABLE IF NOT EXISTS {joins} (
    join_id         varchar(36) PRIMARY KEY,
    grouping_key    varchar(255),
    expected_steps  integer NOT NULL CHECK (expected_steps > 0),
    attached_steps  integer NOT NULL DEFAULT 0,
    completed_steps integer NOT NULL DEFAULT 0 CHECK (completed_steps >= 0),
    failed_steps    integer NOT NULL DEFAULT 0 CHECK (failed_steps >= 0),
    status          smallint NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
    metadata        text,
    strict          smallint,
    on_complete     text,
    on_fail         text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (completed_steps + failed_steps <= attached_steps),
    CHECK (attached_steps <= expected_steps)
);
CREATE INDEX IF NOT EXISTS {events_join_group} ON {joins} (grouping_key, join_id) WHERE grouping_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS {events_join_closed} ON {joins} (updated_at) WHERE status <> 0;

CREATE TABLE IF NOT EXISTS {members} (
    join_id    varchar(36) NOT NULL,
    event_id   varchar(36) NOT NULL,
    home       varchar(64) NOT NULL DEFAULT '',
    status     smallint NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 2),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (join_id, event_id)
);
CREATE INDEX IF NOT EXISTS {events_step_event} ON {members} (event_id);
CREATE INDEX IF NOT EXISTS {events_step_away} ON {members} (updated_at) WHERE home <> '' AND status <> 0;

CREATE TABLE IF NOT EXISTS {inbox} (
    consumer    varchar(128) NOT NULL,
    event_id    varchar(255) NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX IF NOT EXISTS {events_inbox_received} ON {inbox} (received_at);

CREATE TABLE IF NOT EXISTS {log} (
    position       bigint PRIMARY KEY CHECK (position > 0),
    event_id       varchar(36) NOT NULL UNIQUE DEFAULT gen_random_uuid()::text,
    event_type     varchar(255) NOT NULL CHECK (event_type <> ''),
    tags           text[] NOT NULL DEFAULT ARRAY[]::text[] CHECK (array_position(tags, NULL) IS NULL),
    aggregate_type varchar(64) NOT NULL DEFAULT '__GLOBAL__',
    aggregate_id   varchar(128),
    tenant_id      varchar(64),
    ordering_key   varchar(255),
    correlation_id varchar(255),
    headers        json,
    payload        json,
    payload_bytes  bytea,
    content_type   varchar(255),
    occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL)),
    CONSTRAINT {events_log_times} CHECK (
        LEAST(occurred_at, created_at) >= '0001-01-01 00:00:00+00'
        AND GREATEST(occurred_at, created_at) < '10000-01-01 00:00:00+00')
);
CREATE INDEX IF NOT EXISTS {events_log_type} ON {log} (event_type, position);

CREATE TABLE IF NOT EXISTS {log_tags} (
    tag      varchar(255) NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (tag, position)
);

-- The last position. An append locks the row until the end of its transaction, so positions become
-- visible in their order and without a gap.
CREATE TABLE IF NOT EXISTS {log_head} (
    id       integer PRIMARY KEY CHECK (id = 1),
    position bigint NOT NULL
);
INSERT INTO {log_head} (id, position) VALUES (1, 0) ON CONFLICT (id) DO NOTHING;

CREATE TABLE IF NOT EXISTS {log_unreadable} (
    position bigint PRIMARY KEY,
    reason   text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Waits for open appends, and returns the last position.
CREATE OR REPLACE FUNCTION {log_settled}(alone text[]) RETURNS bigint LANGUAGE plpgsql AS $body$
DECLARE
    last bigint;
BEGIN
    SELECT h.position INTO last FROM {log_head} h WHERE h.id = 1 FOR UPDATE;
    RETURN last;
END $body$;

-- Appends events, one of each array, if the conditions hold: see migrations/postgres/0004_log.sql.
-- The lock on the last position excludes every other append, so `shared` and `alone` are not used.
CREATE OR REPLACE FUNCTION {log_append}(
    new_ids text[], new_types text[], new_tags text[], new_aggregate_types text[], new_aggregate_ids text[],
    new_tenants text[], new_keys text[], new_correlations text[], new_headers text[], new_payloads text[],
    new_bytes bytea[], new_content_types text[], new_times timestamptz[], stored_at timestamptz,
    shared text[], alone text[],
    if_once bigint[], if_after bigint[], if_tags text[], if_types text[],
    OUT outcome text, OUT place bigint, OUT positions bigint[]
) LANGUAGE plpgsql AS $body$
DECLARE
    last bigint;
    checks integer := COALESCE(array_length(if_after, 1), 0);
    events integer := COALESCE(array_length(new_ids, 1), 0);
    i integer := 1;
    wanted text[];
    types text[];
    is_there boolean;
BEGIN
    IF checks > 0 AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        outcome := 'isolation';
        RETURN;
    END IF;
    SELECT h.position INTO last FROM {log_head} h WHERE h.id = 1 FOR UPDATE;
    WHILE i <= checks LOOP
        IF if_after[i] > last THEN
            outcome := 'beyond';
            place := last;
            RETURN;
        END IF;
        wanted := if_tags[i]::text[];
        types := if_types[i]::text[];
        IF COALESCE(array_length(wanted, 1), 0) > 0 THEN
            is_there := EXISTS (
                SELECT 1 FROM {log_tags} t JOIN {log} l ON l.position = t.position
                WHERE t.tag = wanted[1] AND t.position > if_after[i] AND l.tags @> wanted
                  AND (COALESCE(array_length(types, 1), 0) = 0 OR l.event_type = ANY (types)));
        ELSIF COALESCE(array_length(types, 1), 0) > 0 THEN
            is_there := EXISTS (SELECT 1 FROM {log} l WHERE l.event_type = ANY (types) AND l.position > if_after[i]);
        ELSE
            is_there := EXISTS (SELECT 1 FROM {log} l WHERE l.position > if_after[i]);
        END IF;
        IF is_there THEN
            outcome := CASE WHEN if_once[i] = 1 THEN 'already' ELSE 'conflict' END;
            place := if_after[i];
            RETURN;
        END IF;
        i := i + 1;
    END LOOP;
    UPDATE {log_head} SET position = last + events WHERE id = 1;
    INSERT INTO {log} (position, event_id, event_type, tags, aggregate_type, aggregate_id, tenant_id, ordering_key,
        correlation_id, headers, payload, payload_bytes, content_type, occurred_at, created_at)
    SELECT last + r.n, r.id, r.event_type, r.tags::text[], r.aggregate_type, r.aggregate_id, r.tenant,
        r.key, r.correlation, r.headers::json, r.payload::json, r.bytes, r.content_type, r.at,
        COALESCE(stored_at, clock_timestamp())
    FROM unnest(new_ids, new_types, new_tags, new_aggregate_types, new_aggregate_ids, new_tenants, new_keys,
        new_correlations, new_headers, new_payloads, new_bytes, new_content_types, new_times) WITH ORDINALITY
        r(id, event_type, tags, aggregate_type, aggregate_id, tenant, key, correlation, headers, payload, bytes,
          content_type, at, n);
    INSERT INTO {log_tags} (tag, position)
    SELECT t.tag, l.position FROM {log} l CROSS JOIN unnest(l.tags) t(tag)
    WHERE l.position > last AND l.position <= last + events;
    positions := ARRAY(SELECT last + n FROM generate_series(1, events) n);
    outcome := 'new';
END $body$;

-- For rows from writers in other languages: draws the position and writes the tags. A position that
-- is set by the writer must have been drawn.
DROP TRIGGER IF EXISTS {events_log_insert} ON {log};
CREATE OR REPLACE FUNCTION {log_insert}() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    drawn bigint;
BEGIN
    IF NEW.position IS NOT NULL THEN
        SELECT h.position INTO drawn FROM {log_head} h WHERE h.id = 1;
        IF NEW.position > drawn THEN
            RAISE EXCEPTION 'outbox: position % has not been drawn from the sequence yet: leave the position out', NEW.position
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    NEW.tags := ARRAY(
        SELECT CASE WHEN strpos(t.tag, '=') = 0 THEN t.tag || '=' ELSE t.tag END
        FROM unnest(NEW.tags) WITH ORDINALITY t(tag, n) GROUP BY 1 ORDER BY min(t.n));
    UPDATE {log_head} SET position = position + 1 WHERE id = 1 RETURNING position INTO drawn;
    NEW.position := drawn;
    NEW.created_at := clock_timestamp();
    INSERT INTO {log_tags} (tag, position) SELECT t.tag, NEW.position FROM unnest(NEW.tags) t(tag);
    RETURN NEW;
END $body$;
CREATE TRIGGER {events_log_insert} BEFORE INSERT ON {log} FOR EACH ROW EXECUTE FUNCTION {log_insert}();

CREATE TABLE IF NOT EXISTS {progress} (
    topic         varchar(100) NOT NULL CHECK (topic <> ''),
    publisher     varchar(100) NOT NULL CHECK (publisher <> ''),
    status        varchar(16) NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'PAUSED', 'FAILED')),
    last_position bigint NOT NULL DEFAULT 0 CHECK (last_position >= 0),
    error_count   integer NOT NULL DEFAULT 0,
    last_error    text,
    leader        varchar(128),
    epoch         bigint NOT NULL DEFAULT 0,
    leader_until  timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic, publisher)
);

CREATE TABLE IF NOT EXISTS {nodes} (
    node       varchar(128) PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    state      text NOT NULL
);

CREATE TABLE IF NOT EXISTS {attempts} (
    attempt_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id   varchar(36) NOT NULL,
    failed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    number     integer NOT NULL,
    node       varchar(128) NOT NULL,
    fatal      smallint NOT NULL DEFAULT 0 CHECK (fatal IN (0, 1)),
    error      text NOT NULL
);
CREATE INDEX IF NOT EXISTS {events_attempt_event} ON {attempts} (event_id, attempt_id);
CREATE INDEX IF NOT EXISTS {events_attempt_at} ON {attempts} (failed_at);

CREATE TABLE IF NOT EXISTS {audits} (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor    varchar(255) NOT NULL,
    via      varchar(64) NOT NULL,
    action   varchar(64) NOT NULL,
    target   varchar(255),
    details  text,
    outcome  text,
    affected bigint
);

-- Stays empty: relays lease events one by one. Statements that are shared with PostgreSQL read it.
CREATE TABLE IF NOT EXISTS {batches} (
    batch_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner      varchar(128) NOT NULL,
    held_until timestamptz NOT NULL,
    due_from   timestamptz NOT NULL,
    due_to     timestamptz NOT NULL,
    seqs       bigint[] NOT NULL
);
