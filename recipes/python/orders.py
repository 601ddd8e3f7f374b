"""Events from Python, in the transaction of the change. Run it with:

    pip install -r requirements.txt
    DATABASE_URL=postgres://user:password@host/shop python orders.py
"""

import os
from datetime import timedelta

import psycopg
from psycopg.types.json import Json

TABLES = """
    CREATE TABLE IF NOT EXISTS customer (id bigint PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS shop_order (id bigint PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL);
"""


class Refused(Exception):
    """An invalid order."""


def place_order(connection, order, customer, total, traceparent, card="good"):
    """The order and its events: all of them, or none."""
    with connection.transaction():
        # Events of one key are delivered in the order of their inserts. Two transactions of one customer must
        # therefore not insert side by side: this lock makes the second wait for the first to commit.
        connection.execute("SELECT 1 FROM customer WHERE id = %s FOR UPDATE", [customer])
        connection.execute("INSERT INTO shop_order VALUES (%s, %s, %s)", [order, customer, total])
        write_event(
            connection,
            "order.placed",
            {"order": order, "total": total},
            aggregate=("order", order),
            ordering_key=f"customer-{customer}",
            headers={"traceparent": traceparent, "source": "shop"},
        )
        # Due tomorrow, and written once for each order, however often it is requested.
        write_event(
            connection,
            "order.review",
            {"order": order},
            dedup_key=f"review-{order}",
            delay=timedelta(days=1),
        )
        append_to_log(connection, "OrderPlaced", [f"order={order}", f"customer={customer}"], {"total": total})
        if card != "good":
            raise Refused(f"no money from a {card} card")


def write_event(
    connection,
    event_type,
    payload,
    aggregate=(None, None),
    ordering_key=None,
    headers=None,
    dedup_key=None,
    delay=timedelta(),
):
    """Writes an event for the relay. Returns its id, or None if an event with this dedup_key exists."""
    row = connection.execute(
        """
        INSERT INTO outbox_event (event_type, payload, aggregate_type, aggregate_id, ordering_key, headers,
                                  dedup_key, available_at)
        VALUES (%s, %s, COALESCE(%s, '__GLOBAL__'), %s, %s, %s, %s, clock_timestamp() + %s)
        ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
        RETURNING event_id
        """,
        [
            event_type,
            Json(payload),
            aggregate[0],
            None if aggregate[1] is None else str(aggregate[1]),
            ordering_key,
            None if headers is None else Json(headers),  # an object of strings
            dedup_key,
            delay,
        ],
    ).fetchone()
    return row and row[0]


def append_to_log(connection, event_type, tags, payload):
    """Appends to the event log, which keeps events for any number of readers."""
    connection.execute(
        "INSERT INTO outbox_log (event_type, tags, payload) VALUES (%s, %s, %s)",
        [event_type, tags, Json(payload)],
    )


def main():
    # autocommit: a transaction begins and ends with `connection.transaction()`.
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute("INSERT INTO customer VALUES (7) ON CONFLICT DO NOTHING")
        # From the request that is handled; OpenTelemetry's `propagate.inject(headers)` puts it in by itself.
        traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        place_order(connection, 41, 7, 995, traceparent)
        place_order(connection, 42, 7, 1250, traceparent)
        try:
            place_order(connection, 43, 7, 500, traceparent, card="stolen")
        except Refused as refused:
            print(f"order 43: {refused}, so no order, and no event")
        if write_event(connection, "order.review", {"order": 42}, dedup_key="review-42") is None:
            print("the review of order 42 was asked for before")


if __name__ == "__main__":
    main()
