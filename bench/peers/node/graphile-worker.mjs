// graphile-worker. Settings: the preset of https://worker.graphile.org/docs/performance, "With batching".

import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import { main, versionOf } from './shared.mjs'

const SCHEMA = 'peer_graphile_worker'
const BATCHING = 'concurrentJobs 24, maxPoolSize 25, localQueue 500, completeJobBatchDelay 0; jobs are deleted when done'

const logger = new Logger(() => () => {})

async function open(database) {
  const utils = await makeWorkerUtils({ connectionString: database, schema: SCHEMA, logger, maxPoolSize: 10 })
  await utils.migrate()
  const addJob = `SELECT ${SCHEMA}.add_job('bench', $1::json)`
  return {
    addMany: (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: 'bench', payload }))),
    add: (payload) => utils.addJob('bench', payload),
    addIn: (client, payload) => client.query({ name: 'add_job', text: addJob, values: [JSON.stringify(payload)] }),
    work,
    unsettled: `SELECT FROM ${SCHEMA}._private_jobs`,
    close: () => utils.release(),
  }

  async function work(handler) {
    const runner = await run({
      preset: {
        worker: {
          connectionString: database,
          schema: SCHEMA,
          concurrentJobs: 24,
          maxPoolSize: 25,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
      logger,
      noHandleSignals: true,
      taskList: { bench: handler },
    })
    return () => runner.stop()
  }
}

await main({
  name: 'graphile-worker',
  version: versionOf('graphile-worker'),
  schema: SCHEMA,
  settings: {
    drain: `${BATCHING}; filled by addJobs`,
    latency: `${BATCHING}; LISTEN/NOTIFY; added by addJob`,
    write: "the SQL function add_job in the caller's transaction, as a prepared statement",
  },
  open,
})
