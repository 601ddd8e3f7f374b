-- Events from SQL, in the transaction of the change. Run it with:
--   psql -v ON_ERROR_STOP=1 -f postgres.sql "$DATABASE_URL"

CREATE TABLE IF NOT EXISTS customer (id bigint PRIMARY KEY);
CREATE TABLE IF NOT EXISTS shop_order (id bigint PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL);
INSERT INTO customer VALUES (7) ON CONFLICT DO NOTHING;

BEGIN;

-- Events of one key are delivered in the order of their inserts. Two transactions of one customer must therefore not
-- insert side by side: this lock makes the second wait for the first to commit.
SELECT 1 FROM customer WHERE id = 7 FOR UPDATE;

INSERT INTO shop_order VALUES (41, 7, 995);
INSERT INTO outbox_event (event_type, payload, aggregate_type, aggregate_id, ordering_key, headers)
VALUES ('order.placed', '{"order": 41, "total": 995}', 'order', '41', 'customer-7',
        '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "source": "shop"}');

INSERT INTO shop_order VALUES (42, 7, 1250);
INSERT INTO outbox_event (event_type, payload, aggregate_type, aggregate_id, ordering_key, headers)
VALUES ('order.placed', '{"order": 42, "total": 1250}', 'order', '42', 'customer-7',
        '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "source": "shop"}');

-- Due tomorrow, and written once, however often it is requested.
INSERT INTO outbox_event (event_type, payload, dedup_key, available_at)
VALUES ('order.review', '{"order": 41}', 'review-41', clock_timestamp() + interval '1 day'),
       ('order.review', '{"order": 42}', 'review-42', clock_timestamp() + interval '1 day'),
       ('order.review', '{"order": 42}', 'review-42', clock_timestamp() + interval '1 day')
ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING;

-- The event log keeps events for any number of readers. A trigger assigns its positions.
INSERT INTO outbox_log (event_type, tags, payload)
VALUES ('OrderPlaced', ARRAY['order=41', 'customer=7'], '{"total": 995}'),
       ('OrderPlaced', ARRAY['order=42', 'customer=7'], '{"total": 1250}');

COMMIT;
