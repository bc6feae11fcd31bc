// The driver's end of the line for peers on Node; the same words as link.py.
import { writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

const EVERY = 500 // jobs between two lines of progress

export const clock = () => process.hrtime.bigint()

export function say (event, facts = {}) {
  process.stdout.write(JSON.stringify({ event, ...facts }) + '\n')
}

export class Link {
  constructor () {
    const [command, url, options] = process.argv.slice(2)
    this.command = command
    this.url = url
    this.options = JSON.parse(options ?? '{}')
    this.numbers = []
    this.times = []
    this.going = new Promise(resolve => { this.go = resolve })
    this.stopped = new Promise(resolve => { this.stop = resolve })
    const input = createInterface({ input: process.stdin })
    input.on('line', line => {
      const word = line.trim()
      if (word === 'go') this.go()
      else if (word === 'count') say('count', { ran: this.numbers.length })
      else if (word === 'stop') this.stop()
    })
    input.on('close', () => { this.go(); this.stop() }) // also when the harness is gone
  }

  // Everything is imported and connected: wait until the clock may start.
  async ready () {
    say('ready')
    await this.going
    say('begun', { at: Number(clock()) })
  }

  ran (number) {
    this.times.push(clock())
    this.numbers.push(number)
    if (this.numbers.length % EVERY === 0) say('progress', { ran: this.numbers.length })
  }

  async timed (work) {
    await this.ready()
    const start = clock()
    await work()
    say('done', { seconds: Number(clock() - start) / 1e9 })
  }

  // One enqueue every so often; the record says when each had returned.
  async paced (enqueue) {
    await this.ready()
    let due = performance.now()
    const first = this.options.first ?? 0
    for (let number = first; number < first + this.options.count; number++) {
      await enqueue(number)
      this.ran(number)
      due += this.options.every * 1000
      await new Promise(resolve => setTimeout(resolve, Math.max(0, due - performance.now())))
    }
    this.finish()
  }

  finish () {
    if (this.options.record) {
      const lines = this.numbers.map((number, index) => `${number} ${this.times[index]}`)
      writeFileSync(this.options.record, lines.join('\n') + '\n')
    }
    say('finished', { ran: this.numbers.length })
  }
}

export function * chunks (count, size) {
  for (let first = 0; first < count; first += size) {
    yield Array.from({ length: Math.min(size, count - first) }, (_, index) => first + index)
  }
}
