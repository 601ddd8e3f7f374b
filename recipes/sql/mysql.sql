-- Events from SQL, in the transaction of the change: MySQL and MariaDB. Run it with:
--   mysql --host=… --user=… shop < mysql.sql

CREATE TABLE IF NOT EXISTS customer (id bigint PRIMARY KEY);
CREATE TABLE IF NOT EXISTS shop_order (id bigint PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL);
INSERT IGNORE INTO customer VALUES (7);

START TRANSACTION;

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

-- Due tomorrow, and written once, however often it is requested. Times are UTC, so not NOW(). An update that changes
-- nothing, instead of INSERT IGNORE, which would hide other errors too.
INSERT INTO outbox_event (event_type, payload, dedup_key, available_at)
VALUES ('order.review', '{"order": 41}', 'review-41', UTC_TIMESTAMP(6) + INTERVAL 1 DAY),
       ('order.review', '{"order": 42}', 'review-42', UTC_TIMESTAMP(6) + INTERVAL 1 DAY),
       ('order.review', '{"order": 42}', 'review-42', UTC_TIMESTAMP(6) + INTERVAL 1 DAY)
ON DUPLICATE KEY UPDATE dedup_key = dedup_key;

-- The event log keeps events for any number of readers. Positions come from a counter, which is locked until the commit:
-- append last. Tags are in the row, and one by one in the table that is searched.
UPDATE outbox_log_head SET position = LAST_INSERT_ID(position + 2);
SET @last = LAST_INSERT_ID();
INSERT INTO outbox_log (position, event_type, tags, payload)
VALUES (@last - 1, 'OrderPlaced', '["order=41", "customer=7"]', '{"total": 995}'),
       (@last, 'OrderPlaced', '["order=42", "customer=7"]', '{"total": 1250}');
INSERT INTO outbox_log_tag (tag, position)
VALUES ('order=41', @last - 1), ('customer=7', @last - 1), ('order=42', @last), ('customer=7', @last);

COMMIT;
