// Restate: one-way calls of a service over its HTTP ingress, and durable steps with ctx.run.
import * as restate from '@restatedev/restate-sdk'
import http from 'node:http'
import { Link, chunks } from './link.mjs'

const link = new Link()
const [ingress, admin, port] = link.url.split(' ')
const { count, kind, steps } = link.options
const agent = new http.Agent({ keepAlive: true, maxSockets: 64 })

function post (url, body) {
  return new Promise((resolve, reject) => {
    const text = JSON.stringify(body)
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }
    const request = http.request(url, { method: 'POST', agent, headers }, answer => {
      answer.resume()
      answer.on('end', () => answer.statusCode < 300 ? resolve() : reject(new Error(`${url}: ${answer.statusCode}`)))
    })
    request.on('error', reject)
    request.end(text)
  })
}

const enqueue = number => post(`${ingress}/bench/${kind === 'steps' ? 'scripted' : 'noop'}/send`, { number })

const bench = restate.service({
  name: 'bench',
  handlers: {
    noop: async (ctx, { number }) => { link.ran(number) },
    scripted: async (ctx, { number }) => {
      for (let place = 0; place < steps; place++) {
        await ctx.run('note', () => { link.ran(number * steps + place); return number })
      }
    }
  }
})

async function serve () {
  restate.setGlobalLogger?.(() => {})
  await restate.serve({ services: [bench], port: Number(port) })
}

switch (link.command) {
  case 'prepare':
    await serve()
    await post(`${admin}/deployments`, { uri: `http://127.0.0.1:${port}` })
    break
  case 'single':
    await link.timed(async () => { for (let number = 0; number < count; number++) await enqueue(number) })
    break
  case 'bulk':
    await link.timed(async () => { for (const numbers of chunks(count, 64)) await Promise.all(numbers.map(enqueue)) })
    break
  case 'paced':
    await link.paced(enqueue)
    break
  case 'work':
    await link.ready()
    await serve()
    await link.stopped
    link.finish()
}
process.exit(0)
