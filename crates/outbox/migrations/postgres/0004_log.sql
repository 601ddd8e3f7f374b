-- The event log: permanent events in one order, with tags. Writers in any language may set:
-- event_id, event_type, tags, aggregate_type, aggregate_id, tenant_id, ordering_key,
-- correlation_id, headers, payload or payload_bytes with content_type, occurred_at. The position is
-- left out: a trigger draws it. The minimum is:
--   INSERT INTO outbox_log (event_type, tags, payload) VALUES ('DepositMade', ARRAY['wallet_id=w1'], '{"amount": 5}');
--
-- CACHE 1: all guarantees about positions depend on a higher one being drawn later.
CREATE SEQUENCE IF NOT EXISTS {log_seq} AS bigint CACHE 1;

CREATE TABLE IF NOT EXISTS {log} (
    -- Position in the log. Rows are committed out of this order; a reader waits for missing
    -- positions.
    position       bigint PRIMARY KEY CHECK (position > 0),
    event_id       varchar(36) COLLATE "C" NOT NULL UNIQUE DEFAULT gen_random_uuid()::text,
    event_type     varchar(255) COLLATE "C" NOT NULL CHECK (event_type <> ''),
    -- Each is name=value. Also in the table of tags, by which queries find events.
    tags           text[] COLLATE "C" NOT NULL DEFAULT ARRAY[]::text[] CHECK (array_position(tags, NULL) IS NULL),
    aggregate_type varchar(64) NOT NULL DEFAULT '__GLOBAL__',
    aggregate_id   varchar(128),
    tenant_id      varchar(64),
    ordering_key   varchar(255) COLLATE "C",
    correlation_id varchar(255),
    headers        json,
    -- json, not jsonb: jsonb reorders keys, drops doubles and refuses \u0000.
    payload        json,
    payload_bytes  bytea,
    content_type   varchar(255),
    occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CHECK ((payload_bytes IS NULL) = (content_type IS NULL))
);
CREATE INDEX IF NOT EXISTS {events_log_type} ON {log} (event_type, position);

CREATE TABLE IF NOT EXISTS {log_tags} (
    tag      varchar(255) COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (tag, position)
);

-- Locks until the end of the transaction, by name: `e` is the whole log, `y` and a type the events
-- of that type, `t` and a tag the events with that tag. An append takes shared locks on the names
-- of its events; a decision takes exclusive locks on the names of its query. Always in one order,
-- so that two transactions do not deadlock. `e` is always among them, so that it alone can stand
-- for all: more locks would fill the server's lock table.
CREATE OR REPLACE FUNCTION {log_lock}(shared text[], alone text[]) RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
    -- Number of locks that this transaction has taken before.
    taken integer := COALESCE(NULLIF(current_setting('outbox.log_locks', TRUE), ''), '0')::integer;
    wanted integer := cardinality(shared) + cardinality(alone);
BEGIN
    IF taken + wanted > 1024 THEN
        -- Most of them may be the same again.
        SELECT count(*) INTO taken FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
    END IF;
    IF wanted > 256 OR taken + wanted > 1024 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('e', hashtextextended('{log}', 4)));
        RETURN;
    END IF;
    PERFORM count(CASE WHEN k.alone THEN pg_advisory_xact_lock(k.h) ELSE pg_advisory_xact_lock_shared(k.h) END)
    FROM (
        SELECT hashtextextended(n.name, hashtextextended('{log}', 4)) AS h, bool_or(n.alone) AS alone
        FROM (SELECT unnest(shared) AS name, FALSE AS alone UNION ALL SELECT unnest(alone), TRUE) n
        GROUP BY 1 ORDER BY 1
    ) k;
    PERFORM set_config('outbox.log_locks', (taken + wanted)::text, TRUE);
END $body$;

-- The last position up to which all events of these names are final: committed, or never to be
-- committed. Waits for transactions that might still commit one; later appends get higher
-- positions. A committed position, because after a crash a sequence may forget positions that only
-- rolled-back transactions had drawn.
CREATE OR REPLACE FUNCTION {log_settled}(alone text[]) RETURNS bigint LANGUAGE plpgsql AS $body$
DECLARE
    drawn bigint;
BEGIN
    PERFORM {log_lock}(ARRAY['e'], alone);
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO drawn FROM {log_seq} s;
    RETURN LEAST(drawn, COALESCE((SELECT max(l.position) FROM {log} l), 0));
END $body$;

-- Appends events, one of each array, if the conditions hold. Every statement in here sees
-- everything that was committed before it began, so the conditions are checked after the locks are
-- taken, and a position is drawn while they are held. `outcome` is `new` with the positions, or
-- `already`, `conflict`, `beyond` with the condition's position or the end of the log in `place`,
-- or `isolation`: the transaction does not see later commits.
CREATE OR REPLACE FUNCTION {log_append}(
    new_ids text[], new_types text[], new_tags text[], new_aggregate_types text[], new_aggregate_ids text[],
    new_tenants text[], new_keys text[], new_correlations text[], new_headers text[], new_payloads text[],
    new_bytes bytea[], new_content_types text[], new_times timestamptz[], stored_at timestamptz,
    shared text[], alone text[],
    if_once bigint[], if_after bigint[], if_tags text[], if_types text[],
    OUT outcome text, OUT place bigint, OUT positions bigint[]
) LANGUAGE plpgsql AS $body$
DECLARE
    drawn bigint;
    wanted text[];
    types text[];
    found boolean;
BEGIN
    IF cardinality(if_after) > 0 AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        outcome := 'isolation';
        RETURN;
    END IF;
    PERFORM {log_lock}(shared, alone);
    IF cardinality(if_after) > 0 THEN
        SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO drawn FROM {log_seq} s;
        FOR i IN 1..cardinality(if_after) LOOP
            IF if_after[i] > drawn THEN
                outcome := 'beyond';
                place := drawn;
                RETURN;
            END IF;
            wanted := if_tags[i]::text[];
            types := if_types[i]::text[];
            IF cardinality(wanted) > 0 THEN
                found := EXISTS (
                    SELECT 1 FROM {log_tags} t JOIN {log} l ON l.position = t.position
                    WHERE t.tag = wanted[1] AND t.position > if_after[i]
                      AND l.tags @> wanted AND (cardinality(types) = 0 OR l.event_type = ANY (types)));
            ELSIF cardinality(types) > 0 THEN
                found := EXISTS (SELECT 1 FROM {log} l WHERE l.event_type = ANY (types) AND l.position > if_after[i]);
            ELSE
                found := EXISTS (SELECT 1 FROM {log} l WHERE l.position > if_after[i]);
            END IF;
            IF found THEN
                outcome := CASE WHEN if_once[i] = 1 THEN 'already' ELSE 'conflict' END;
                place := if_after[i];
                RETURN;
            END IF;
        END LOOP;
    END IF;
    WITH written AS (
        INSERT INTO {log} (position, event_id, event_type, tags, aggregate_type, aggregate_id, tenant_id, ordering_key,
            correlation_id, headers, payload, payload_bytes, content_type, occurred_at, created_at)
        SELECT nextval('{log_seq}'), r.id, r.event_type, r.tags::text[], r.aggregate_type, r.aggregate_id, r.tenant,
            r.key, r.correlation, r.headers::json, r.payload::json, r.bytes, r.content_type, r.at,
            COALESCE(stored_at, clock_timestamp())
        FROM unnest(new_ids, new_types, new_tags, new_aggregate_types, new_aggregate_ids, new_tenants, new_keys,
            new_correlations, new_headers, new_payloads, new_bytes, new_content_types, new_times)
            r(id, event_type, tags, aggregate_type, aggregate_id, tenant, key, correlation, headers, payload, bytes,
              content_type, at)
        RETURNING {log}.position, {log}.tags
    ), tagged AS (
        INSERT INTO {log_tags} (tag, position) SELECT t.tag, w.position FROM written w CROSS JOIN unnest(w.tags) t(tag)
    )
    SELECT array_agg(w.position ORDER BY w.position) INTO positions FROM written w;
    outcome := 'new';
END $body$;

-- For rows without a position, from writers in other languages: locks, draws the position, writes
-- the tags.
CREATE OR REPLACE FUNCTION {log_insert}() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.tags := ARRAY(
        SELECT CASE WHEN strpos(t.tag, '=') = 0 THEN t.tag || '=' ELSE t.tag END
        FROM unnest(NEW.tags) WITH ORDINALITY t(tag, n) GROUP BY 1 ORDER BY min(t.n));
    PERFORM {log_lock}(ARRAY['e', 'y' || NEW.event_type] || ARRAY(SELECT 't' || t.tag FROM unnest(NEW.tags) t(tag)), ARRAY[]::text[]);
    NEW.position := nextval('{log_seq}');
    -- Not before the locks: times should increase with positions.
    NEW.created_at := clock_timestamp();
    INSERT INTO {log_tags} (tag, position) SELECT t.tag, NEW.position FROM unnest(NEW.tags) t(tag);
    RETURN NEW;
END $body$;

-- The trigger finds the outbox tables whatever the search path of the writer.
DO $body$
BEGIN
    EXECUTE format('ALTER FUNCTION {log_insert}() SET search_path = %s, pg_temp',
        (SELECT c.relnamespace::regnamespace FROM pg_class c WHERE c.oid = '{log}'::regclass));
END $body$;

DROP TRIGGER IF EXISTS {events_log_insert} ON {log};
CREATE TRIGGER {events_log_insert} BEFORE INSERT ON {log} FOR EACH ROW WHEN (NEW.position IS NULL)
    EXECUTE FUNCTION {log_insert}();
