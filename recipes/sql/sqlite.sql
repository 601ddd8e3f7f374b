-- Events from SQL, in the transaction of the change: SQLite. Run it with:
--   sqlite3 -bail shop.db < sqlite.sql

CREATE TABLE IF NOT EXISTS shop_order (id integer PRIMARY KEY, customer integer NOT NULL, total integer NOT NULL);

-- IMMEDIATE: SQLite has one writer at a time, and a transaction that begins as a reader may fail when it writes.
BEGIN IMMEDIATE;

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
VALUES ('order.review', '{"order": 41}', 'review-41', datetime('now', '+1 day')),
       ('order.review', '{"order": 42}', 'review-42', datetime('now', '+1 day')),
       ('order.review', '{"order": 42}', 'review-42', datetime('now', '+1 day'))
ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING;

-- The event log keeps events for any number of readers. The position is left out; tags are a JSON array of texts.
INSERT INTO outbox_log (event_type, tags, payload)
VALUES ('OrderPlaced', '["order=41", "customer=7"]', '{"total": 995}'),
       ('OrderPlaced', '["order=42", "customer=7"]', '{"total": 1250}');

COMMIT;
