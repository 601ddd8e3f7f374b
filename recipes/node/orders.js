// Events from Node, in the transaction of the change. Run it with:
//
//     npm install
//     DATABASE_URL=postgres://user:password@host/shop node orders.js

import pg from 'pg';

const TABLES = `
  CREATE TABLE IF NOT EXISTS customer (id bigint PRIMARY KEY);
  CREATE TABLE IF NOT EXISTS shop_order (id bigint PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL);
`;

/** Runs `work` in a transaction: on one client of the pool, since `pool.query` may take another for each statement. */
async function transaction(pool, work) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const result = await work(client);
    await client.query('COMMIT');
    client.release();
    return result;
  } catch (error) {
    // A client whose rollback failed is closed, not returned to the pool.
    await client.query('ROLLBACK').then(() => client.release(), (broken) => client.release(broken));
    throw error;
  }
}

/** An invalid order. */
class Refused extends Error {}

/** The order and its events: all of them, or none. */
async function placeOrder(pool, order, customer, total, traceparent, card = 'good') {
  await transaction(pool, async (client) => {
    // Events of one key are delivered in the order of their inserts. Two transactions of one customer must
    // therefore not insert side by side: this lock makes the second wait for the first to commit.
    await client.query('SELECT 1 FROM customer WHERE id = $1 FOR UPDATE', [customer]);
    await client.query('INSERT INTO shop_order VALUES ($1, $2, $3)', [order, customer, total]);
    await writeEvent(client, 'order.placed', { order, total }, {
      aggregateType: 'order',
      aggregateId: String(order),
      orderingKey: `customer-${customer}`,
      headers: { traceparent, source: 'shop' },
    });
    // Due tomorrow, and written once for each order, however often it is requested.
    await writeEvent(client, 'order.review', { order }, { dedupKey: `review-${order}`, delaySeconds: 86_400 });
    await appendToLog(client, 'OrderPlaced', [`order=${order}`, `customer=${customer}`], { total });
    if (card !== 'good') throw new Refused(`no money from a ${card} card`);
  });
}

/** Writes an event for the relay. Returns its id, or undefined if an event with this dedupKey exists. */
async function writeEvent(client, eventType, payload, options = {}) {
  const { rows } = await client.query(
    `INSERT INTO outbox_event (event_type, payload, aggregate_type, aggregate_id, ordering_key, headers,
                               dedup_key, available_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + make_interval(secs => $8))
     ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
     RETURNING event_id`,
    [
      eventType,
      JSON.stringify(payload), // pg would make a PostgreSQL array of an array
      options.aggregateType ?? '__GLOBAL__',
      options.aggregateId ?? null,
      options.orderingKey ?? null,
      options.headers ? JSON.stringify(options.headers) : null, // an object of strings
      options.dedupKey ?? null,
      options.delaySeconds ?? 0,
    ],
  );
  return rows[0]?.event_id;
}

/** Appends to the event log, which keeps events for any number of readers. */
async function appendToLog(client, eventType, tags, payload) {
  await client.query(
    'INSERT INTO outbox_log (event_type, tags, payload) VALUES ($1, $2, $3)',
    [eventType, tags, JSON.stringify(payload)],
  );
}

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
try {
  await pool.query(TABLES);
  await pool.query('INSERT INTO customer VALUES (7) ON CONFLICT DO NOTHING');
  // From the request that is handled; OpenTelemetry's `propagation.inject(context.active(), headers)` puts it in by itself.
  const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
  await placeOrder(pool, 41, 7, 995, traceparent);
  await placeOrder(pool, 42, 7, 1250, traceparent);
  try {
    await placeOrder(pool, 43, 7, 500, traceparent, 'stolen');
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    console.log(`order 43: ${error.message}, so no order, and no event`);
  }
  const review = await transaction(pool, (client) =>
    writeEvent(client, 'order.review', { order: 42 }, { dedupKey: 'review-42' }));
  if (review === undefined) console.log('the review of order 42 was asked for before');
} finally {
  await pool.end();
}
