// Shared by every peer on Node.js: the arguments, the three figures, the line that is printed.
//
// A peer provides `open(database)`, which creates its schema and resolves to:
//   addMany(payloads)       adds jobs by its fastest documented way
//   add(payload)            adds one job in a transaction of its own
//   addIn(client, payload)  adds one job in the caller's transaction
//   work(handler)           starts the worker; resolves to a function that stops it
//   unsettled               a query for whether any job is neither gone nor marked as done
//   close()                 closes its connections

import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pg from 'pg'

const WARM_UP = 100

/** The version that is installed. */
export function versionOf(name) {
  return createRequire(import.meta.url)(`./node_modules/${name}/package.json`).version
}

/** 256 bytes as PostgreSQL prints them, as in our own figures; `order` tells one from another. */
export function payload(order = 4711) {
  return { order, text: 'x'.repeat(230) }
}

/** Measures what the arguments ask for and prints one line of JSON, or one that says what went wrong. */
export async function main(peer) {
  try {
    console.log(JSON.stringify(await measured(peer)))
    process.exit(0)
  } catch (error) {
    console.error(`${error}`.replaceAll('\n', ' '))
    process.exit(1)
  }
}

async function measured(peer) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      database: { type: 'string' },
      events: { type: 'string' },
      rate: { type: 'string' },
      seconds: { type: 'string' },
      writers: { type: 'string' },
      transactions: { type: 'string' },
    },
  })
  const figure = positionals[0]
  const measure = { drain, latency, write }[figure]
  if (!measure || !values.database) {
    throw new Error('say drain, latency or write, and --database URL')
  }
  const admin = new pg.Client(values.database)
  await admin.connect()
  try {
    await drop(admin, peer.schema)
    const queue = await peer.open(values.database)
    try {
      const { name, version } = peer
      const figures = await measure({ queue, peer, admin, values })
      return { peer: name, version, language: 'JavaScript', figure, ...figures, settings: peer.settings[figure] }
    } finally {
      await queue.close()
    }
  } finally {
    await drop(admin, peer.schema)
    await admin.end()
  }
}

async function drop(admin, schema) {
  await admin.query('SET client_min_messages = warning')
  await admin.query(`DROP SCHEMA IF EXISTS ${schema} CASCADE`)
}

/** Lets the server write out what it has, so that the figure does not pay for the filling. */
async function settle(admin, schema) {
  const { rows } = await admin.query(`SELECT tablename FROM pg_tables WHERE schemaname = '${schema}'`)
  for (const { tablename } of rows) {
    await admin.query(`VACUUM ANALYZE ${schema}."${tablename}"`)
  }
  await admin.query('CHECKPOINT')
}

async function drain({ queue, peer, admin, values }) {
  const events = Number(values.events)
  for (let start = 0; start < events; start += 1_000) {
    await queue.addMany(Array.from({ length: Math.min(1_000, events - start) }, () => payload()))
  }
  await settle(admin, peer.schema)

  let left = events
  const handled = Promise.withResolvers()
  const began = performance.now()
  const stop = await queue.work(() => {
    if (--left === 0) handled.resolve()
  })
  await handled.promise
  while ((await admin.query(`SELECT EXISTS (${queue.unsettled}) AS any`)).rows[0].any) {
    await sleep(2)
  }
  const seconds = (performance.now() - began) / 1_000
  await stop()
  if (left !== 0) throw new Error(`${-left} jobs were handled twice`)
  return { events, seconds }
}

async function latency({ queue, values }) {
  const [rate, seconds] = [Number(values.rate), Number(values.seconds)]
  const count = Math.round(rate * seconds)
  const [committed, started] = [new Map(), new Map()]
  const total = WARM_UP + count
  const handled = Promise.withResolvers()
  const stop = await queue.work((job) => {
    started.set(job.order, performance.now())
    if (started.size === total) handled.resolve()
  })
  const began = performance.now() + 1_000
  const adding = []
  for (let i = 0; i < total; i++) {
    await sleep(Math.max(0, began + (i * 1_000) / rate - performance.now()))
    adding.push(queue.add(payload(i)).then(() => committed.set(i, performance.now())))
  }
  await Promise.all([...adding, handled.promise])
  await stop()
  const times = Array.from({ length: count }, (_, i) => {
    const job = WARM_UP + i
    return Math.max(0, started.get(job) - committed.get(job))
  })
  return { rate, count, ...spread(times) }
}

function spread(times) {
  times.sort((a, b) => a - b)
  const at = (share) => Number(times[Math.min(times.length - 1, Math.floor(times.length * share))].toFixed(3))
  return { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), max_ms: at(1) }
}

async function write({ queue, admin, peer, values }) {
  const [writers, transactions] = [Number(values.writers), Number(values.transactions)]
  await admin.query(`CREATE TABLE ${peer.schema}.business (id bigserial PRIMARY KEY, total bigint)`)
  const pool = new pg.Pool({ connectionString: values.database, max: writers })
  const clients = await Promise.all(Array.from({ length: writers }, () => pool.connect()))
  // Prepared, as a driver that is used well does it.
  const insert = {
    name: 'business',
    text: `INSERT INTO ${peer.schema}.business (total) VALUES ($1)`,
    values: [995],
  }
  const one = async (client) => {
    await client.query('BEGIN')
    await client.query(insert)
    await queue.addIn(client, payload())
    await client.query('COMMIT')
  }
  await Promise.all(clients.map(one))
  await settle(admin, peer.schema)

  let left = transactions
  const began = performance.now()
  await Promise.all(clients.map(async (client) => {
    while (left-- > 0) await one(client)
  }))
  const seconds = (performance.now() - began) / 1_000
  clients.forEach((client) => client.release())
  await pool.end()
  return { writers, transactions, seconds }
}
