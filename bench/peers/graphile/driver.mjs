// graphile-worker: addJobs() for bulk; local queue and batched completion, as its performance page advises.
import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import pg from 'pg'
import { Link, chunks } from './link.mjs'

const link = new Link()
const { count, batch, concurrency, localQueue, work_ms: work } = link.options
const logger = new Logger(() => (level, message) => { if (level === 'error') console.error(message) })
const pgPool = new pg.Pool({ connectionString: link.url, max: concurrency ? concurrency + 1 : 2 })
pgPool.on('error', () => {})

if (link.command === 'work') {
  // Opened ahead, so that the clock does not see it.
  const clients = await Promise.all(Array.from({ length: 4 }, () => pgPool.connect()))
  clients.forEach(client => client.release())
  await link.ready()
  const runner = await run({
    pgPool,
    logger,
    noHandleSignals: true,
    taskList: { noop: async ({ number }) => {
      if (work) await new Promise(resolve => setTimeout(resolve, work))
      link.ran(number)
    } },
    preset: {
      worker: {
        concurrentJobs: concurrency,
        localQueue: { size: localQueue },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0
      }
    }
  })
  await link.stopped
  await runner.stop()
  link.finish()
} else {
  const utils = await makeWorkerUtils({ pgPool, logger })
  if (link.command === 'prepare') {
    await utils.migrate()
  } else if (link.command === 'single') {
    await link.timed(async () => {
      for (let number = 0; number < count; number++) await utils.addJob('noop', { number })
    })
  } else if (link.command === 'bulk') {
    await link.timed(async () => {
      for (const numbers of chunks(count, batch)) {
        await utils.addJobs(numbers.map(number => ({ identifier: 'noop', payload: { number } })))
      }
    })
  } else if (link.command === 'paced') {
    await link.paced(number => utils.addJob('noop', { number }))
  }
  await utils.release()
}
await pgPool.end()
process.exit(0)
