// pg-boss. Settings: https://pgboss.io/api/workers (batchSize, burstWhenBatchFull, localConcurrency),
// https://pgboss.io/api/constructor (useListenNotify) and https://pgboss.io/api/queues (notify).

import { PgBoss } from 'pg-boss'
import { main, versionOf } from './shared.mjs'

const SCHEMA = 'peer_pg_boss'
const QUEUE = 'bench'
const WORKER = { batchSize: 500, burstWhenBatchFull: true, localConcurrency: 4, pollingIntervalSeconds: 0.5 }
const SETTINGS = 'batchSize 500, burstWhenBatchFull, localConcurrency 4, LISTEN/NOTIFY; jobs are marked as completed'

async function open(database) {
  const boss = new PgBoss({
    connectionString: database,
    schema: SCHEMA,
    max: 10,
    useListenNotify: true,
    schedule: false,
    supervise: false,
  })
  boss.on('error', (error) => console.error(error))
  await boss.start()
  await boss.createQueue(QUEUE, { notify: true })
  return {
    addMany: (payloads) => boss.insert(QUEUE, payloads.map((data) => ({ data }))),
    add: (payload) => boss.send(QUEUE, payload),
    addIn: (client, payload) => boss.send(QUEUE, payload, {
      db: { executeSql: (text, values) => client.query(text, values) },
    }),
    work,
    unsettled: `SELECT FROM ${SCHEMA}.job WHERE name = '${QUEUE}' AND state < 'completed'`,
    close: () => boss.stop({ graceful: false }),
  }

  async function work(handler) {
    await boss.work(QUEUE, WORKER, async (jobs) => {
      for (const job of jobs) handler(job.data)
    })
    return () => boss.offWork(QUEUE)
  }
}

await main({
  name: 'pg-boss',
  version: versionOf('pg-boss'),
  schema: SCHEMA,
  settings: {
    drain: `${SETTINGS}; filled by insert`,
    latency: `${SETTINGS}; added by send`,
    write: "send with the caller's connection as its db option",
  },
  open,
})
