// Events from Go, in the transaction of the change. Run it with:
//
//	go mod tidy
//	DATABASE_URL=postgres://user:password@host/shop go run .
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
)

const tables = `
	CREATE TABLE IF NOT EXISTS customer (id bigint PRIMARY KEY);
	CREATE TABLE IF NOT EXISTS shop_order (id bigint PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL);
	INSERT INTO customer VALUES (7) ON CONFLICT DO NOTHING`

// Event is an event for the relay. Empty fields get the database's defaults.
type Event struct {
	Type          string
	Payload       any
	AggregateType string
	AggregateID   string
	OrderingKey   string
	Headers       map[string]string
	DedupKey      string
	Delay         time.Duration
}

// placeOrder writes the order and its events: all of them, or none.
func placeOrder(ctx context.Context, db *sql.DB, order, customer, total int64, traceparent string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit

	// Events of one key are delivered in the order of their inserts. Two transactions of one customer must
	// therefore not insert side by side: this lock makes the second wait for the first to commit.
	if _, err := tx.ExecContext(ctx, "SELECT 1 FROM customer WHERE id = $1 FOR UPDATE", customer); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO shop_order VALUES ($1, $2, $3)", order, customer, total); err != nil {
		return err
	}
	placed := Event{
		Type:          "order.placed",
		Payload:       map[string]int64{"order": order, "total": total},
		AggregateType: "order",
		AggregateID:   fmt.Sprint(order),
		OrderingKey:   fmt.Sprintf("customer-%d", customer),
		Headers:       map[string]string{"traceparent": traceparent, "source": "shop"},
	}
	// Due tomorrow, and written once for each order, however often it is requested.
	review := Event{
		Type:     "order.review",
		Payload:  map[string]int64{"order": order},
		DedupKey: fmt.Sprintf("review-%d", order),
		Delay:    24 * time.Hour,
	}
	for _, event := range []Event{placed, review} {
		if _, err := write(ctx, tx, event); err != nil {
			return err
		}
	}
	tags := []string{fmt.Sprintf("order=%d", order), fmt.Sprintf("customer=%d", customer)}
	if err := appendToLog(ctx, tx, "OrderPlaced", tags, map[string]int64{"total": total}); err != nil {
		return err
	}
	return tx.Commit()
}

// write writes an event and reports whether it is new: it is not if an event with its DedupKey exists.
func write(ctx context.Context, tx *sql.Tx, event Event) (bool, error) {
	payload, err := json.Marshal(event.Payload)
	if err != nil {
		return false, err
	}
	var headers sql.NullString
	if event.Headers != nil {
		text, err := json.Marshal(event.Headers)
		if err != nil {
			return false, err
		}
		headers = sql.NullString{String: string(text), Valid: true}
	}
	written, err := tx.ExecContext(ctx, `
		INSERT INTO outbox_event (event_type, payload, aggregate_type, aggregate_id, ordering_key, headers,
		                          dedup_key, available_at)
		VALUES ($1, $2, COALESCE(NULLIF($3, ''), '__GLOBAL__'), NULLIF($4, ''), NULLIF($5, ''), $6,
		        NULLIF($7, ''), clock_timestamp() + $8::bigint * interval '1 microsecond')
		ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING`,
		event.Type, string(payload), event.AggregateType, event.AggregateID, event.OrderingKey, headers,
		event.DedupKey, event.Delay.Microseconds())
	if err != nil {
		return false, err
	}
	rows, err := written.RowsAffected()
	return rows == 1, err
}

// appendToLog appends to the event log, which keeps events for any number of readers.
func appendToLog(ctx context.Context, tx *sql.Tx, eventType string, tags []string, payload any) error {
	text, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO outbox_log (event_type, tags, payload) VALUES ($1, $2, $3)",
		eventType, tags, string(text))
	return err
}

func main() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, tables); err != nil {
		log.Fatal(err)
	}
	// From the request that is handled; OpenTelemetry's propagation.MapCarrier(headers) puts it in by itself.
	traceparent := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if err := placeOrder(ctx, db, 41, 7, 995, traceparent); err != nil {
		log.Fatal(err)
	}
	if err := placeOrder(ctx, db, 42, 7, 1250, traceparent); err != nil {
		log.Fatal(err)
	}
	var refused *pgconn.PgError
	if err := placeOrder(ctx, db, 42, 7, 1250, traceparent); errors.As(err, &refused) && refused.Code == "23505" {
		fmt.Println("order 42 was there: no order, and no event")
	} else {
		log.Fatal(err)
	}
}
