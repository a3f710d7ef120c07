// The worker that the conformance test of pipe workers drives: each kind of job is one case.
'use strict'
const fs = require('node:fs')
const { setTimeout: sleep } = require('node:timers/promises')
const { work, retry, snooze, dead, cancel } = require('./punctual-worker')

// Makes a file, since notes are stored now and then only.
const begun = (job) => fs.writeFileSync(job.json().begun, 'begun\n')

work(async (job) => {
  console.log('this goes to stderr')
  switch (job.kind) {
    case 'result':
      return { id: job.id, queue: job.queue, attempt: job.attempt, tags: job.tags, got: job.json() }
    case 'length':
      return { length: job.payload.length, sum: job.payload.reduce((sum, byte) => sum + byte, 0) }
    case 'bytes':
      return Buffer.from([0, 255])
    case 'retry':
      throw retry('busy')
    case 'later':
      throw retry('busy', { after: 60 })
    case 'pause':
      throw retry('busy', { after: 60, pause: true })
    case 'snooze':
      throw snooze(60)
    case 'dead':
      throw dead('no such user')
    case 'cancel':
      throw cancel()
    case 'fail':
      throw new Error('it broke')
    case 'notes':
      job.progress(1, 2, 'half')
      job.log('a line')
      return
    case 'enqueue':
      return { status: (await job.enqueue('next', { a: 1 }, { queue: 'other' })).status }
    case 'refused':
      await job.enqueue('next', null, { queue: '' })
      return
    case 'threads': {
      const all = Array.from({ length: 300 }, (_, i) => job.enqueue('next', i, { queue: 'other' }))
      return new Set((await Promise.all(all)).map((answer) => answer.id)).size
    }
    case 'odd': {
      const circle = {}
      circle.circle = circle
      return circle
    }
    case 'polite':
      begun(job)
      while (!job.signal.aborted) await sleep(10)
      throw retry(`ended early: ${job.signal.reason}`)
    case 'deaf':
      process.on('SIGTERM', () => {})
      begun(job)
      return sleep(600_000)
    case 'slow':
      begun(job)
      while (!fs.existsSync(job.json().until)) await sleep(10)
      return
    case 'crash':
      fs.writeSync(2, 'last words\n')
      process.kill(process.pid, 'SIGKILL')
      return sleep(600_000)
    case 'garbage':
      fs.writeSync(0, 'Hello, world\n')
      return sleep(600_000)
    case 'half':
      fs.writeSync(0, Buffer.from([0, 0, 0, 9, 123]))
      process.exit(0)
  }
})
