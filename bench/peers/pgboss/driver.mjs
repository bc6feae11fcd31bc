// pg-boss: insert() for bulk; batches fetched without a pause while they come back full, NOTIFY when idle.
import { PgBoss } from 'pg-boss'
import { Link, chunks } from './link.mjs'

const link = new Link()
const boss = new PgBoss({
  connectionString: link.url,
  schedule: false,
  useListenNotify: link.command === 'work',
  max: 10
})
boss.on('error', error => console.error(error))
await boss.start()
const { count, batch, workers } = link.options

const send = number => boss.send('noop', { number })

if (link.command === 'prepare') {
  await boss.createQueue('noop', { notify: true })
} else if (link.command === 'single') {
  await boss.getQueue('noop')
  await link.timed(async () => {
    for (let number = 0; number < count; number++) await send(number)
  })
} else if (link.command === 'bulk') {
  await boss.getQueue('noop')
  await link.timed(async () => {
    for (const numbers of chunks(count, batch)) {
      await boss.insert('noop', numbers.map(number => ({ data: { number } })))
    }
  })
} else if (link.command === 'paced') {
  await link.paced(send)
} else if (link.command === 'work') {
  await link.ready()
  const options = {
    batchSize: batch,
    localConcurrency: workers,
    burstWhenBatchFull: true,
    pollingIntervalSeconds: 0.5,
    notifyPollingIntervalSeconds: 0.5
  }
  await boss.work('noop', options, async jobs => {
    for (const job of jobs) link.ran(job.data.number)
  })
  await link.stopped
  await boss.offWork('noop')
  link.finish()
}
await boss.stop({ graceful: true, timeout: 5000 })
process.exit(0)
