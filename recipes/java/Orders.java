// Events from Java (17 or newer), in the transaction of the change. Run it with the PostgreSQL driver:
//
//     java -cp postgresql.jar Orders.java 'jdbc:postgresql://host/shop?user=ada&password=secret'

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Optional;

public final class Orders {
    private static final String TABLES = """
        CREATE TABLE IF NOT EXISTS customer (id bigint PRIMARY KEY);
        CREATE TABLE IF NOT EXISTS shop_order (id bigint PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL);
        INSERT INTO customer VALUES (7) ON CONFLICT DO NOTHING""";

    /** An event for the relay. Null fields get the database's defaults. Payload and headers are JSON; headers an object of strings. */
    record Event(String type, String payload, String aggregateType, String aggregateId, String orderingKey, String headers,
                 String dedupKey, Duration delay) {
        static Event of(String type, String payload) {
            return new Event(type, payload, null, null, null, null, null, Duration.ZERO);
        }

        Event about(String type, Object id) {
            return new Event(this.type, payload, type, String.valueOf(id), orderingKey, headers, dedupKey, delay);
        }

        Event key(String key) {
            return new Event(type, payload, aggregateType, aggregateId, key, headers, dedupKey, delay);
        }

        Event headers(String json) {
            return new Event(type, payload, aggregateType, aggregateId, orderingKey, json, dedupKey, delay);
        }

        Event once(String dedupKey) {
            return new Event(type, payload, aggregateType, aggregateId, orderingKey, headers, dedupKey, delay);
        }

        Event after(Duration delay) {
            return new Event(type, payload, aggregateType, aggregateId, orderingKey, headers, dedupKey, delay);
        }
    }

    /** The order and its events: all of them, or none. */
    static void placeOrder(Connection connection, long order, long customer, long total, String traceparent) throws SQLException {
        connection.setAutoCommit(false);
        try {
            // Events of one key are delivered in the order of their inserts. Two transactions of one customer must
            // therefore not insert side by side: this lock makes the second wait for the first to commit.
            try (PreparedStatement lock = connection.prepareStatement("SELECT 1 FROM customer WHERE id = ? FOR UPDATE")) {
                lock.setLong(1, customer);
                lock.executeQuery();
            }
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO shop_order VALUES (?, ?, ?)")) {
                insert.setLong(1, order);
                insert.setLong(2, customer);
                insert.setLong(3, total);
                insert.executeUpdate();
            }
            // A real program would use a JSON library.
            write(connection, Event.of("order.placed", "{\"order\": %d, \"total\": %d}".formatted(order, total))
                .about("order", order)
                .key("customer-" + customer)
                .headers("{\"traceparent\": \"%s\", \"source\": \"shop\"}".formatted(traceparent)));
            // Due tomorrow, and written once for each order, however often it is requested.
            write(connection, Event.of("order.review", "{\"order\": %d}".formatted(order))
                .once("review-" + order)
                .after(Duration.ofDays(1)));
            append(connection, "OrderPlaced", new String[] {"order=" + order, "customer=" + customer},
                "{\"total\": %d}".formatted(total));
            connection.commit();
        } catch (SQLException error) {
            connection.rollback();
            throw error;
        }
    }

    /** Writes an event, in the transaction that is open. Returns its id, or nothing if an event with this dedupKey exists. */
    static Optional<String> write(Connection connection, Event event) throws SQLException {
        String sql = """
            INSERT INTO outbox_event (event_type, payload, aggregate_type, aggregate_id, ordering_key, headers,
                                      dedup_key, available_at)
            VALUES (?, ?::json, COALESCE(?, '__GLOBAL__'), ?, ?, ?::json, ?, clock_timestamp() + ? * interval '1 millisecond')
            ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
            RETURNING event_id""";
        try (PreparedStatement insert = connection.prepareStatement(sql)) {
            insert.setString(1, event.type());
            insert.setString(2, event.payload());
            insert.setString(3, event.aggregateType());
            insert.setString(4, event.aggregateId());
            insert.setString(5, event.orderingKey());
            insert.setString(6, event.headers());
            insert.setString(7, event.dedupKey());
            insert.setLong(8, event.delay().toMillis());
            try (ResultSet written = insert.executeQuery()) {
                return written.next() ? Optional.of(written.getString(1)) : Optional.empty();
            }
        }
    }

    /** Appends to the event log, which keeps events for any number of readers. */
    static void append(Connection connection, String type, String[] tags, String payload) throws SQLException {
        String sql = "INSERT INTO outbox_log (event_type, tags, payload) VALUES (?, ?, ?::json)";
        try (PreparedStatement insert = connection.prepareStatement(sql)) {
            insert.setString(1, type);
            insert.setArray(2, connection.createArrayOf("text", tags));
            insert.setString(3, payload);
            insert.executeUpdate();
        }
    }

    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            connection.createStatement().execute(TABLES);
            // From the request that is handled; OpenTelemetry's propagator puts it into a map of headers by itself.
            String traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            placeOrder(connection, 41, 7, 995, traceparent);
            placeOrder(connection, 42, 7, 1250, traceparent);
            try {
                placeOrder(connection, 42, 7, 1250, traceparent);
            } catch (SQLException error) {
                if (!"23505".equals(error.getSQLState())) { // unique_violation
                    throw error;
                }
                System.out.println("order 42 was there: no order, and no event");
            }
            if (write(connection, Event.of("order.review", "{\"order\": 42}").once("review-42")).isEmpty()) {
                System.out.println("the review of order 42 was asked for before");
            }
            connection.commit();
        }
    }
}
