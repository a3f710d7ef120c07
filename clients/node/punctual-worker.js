// Runs jobs of punctual: `punctual work --exec 'node worker.js' --keep 2 --slots 200`. The protocol is in docs/pipe-workers.md.
//
//     const { work, retry } = require('./punctual-worker')
//     work(async (job) => {
//       if (!(await deliver(job.json()))) throw retry('the receiver is busy', { after: 5 })
//     }, { slots: 100 })
'use strict'
const net = require('node:net')

const TEXT_MAX = 4096 // characters of an error or a line; the store keeps less
const RESULT_MAX = 64 * 1024
const CALLS = 200 // enqueues at once; a worker allows 1,000

// Half a character becomes a mark.
const text = (value) => Buffer.from(String(value).slice(0, TEXT_MAX)).toString()
const whole = (n) => Math.min(Math.max(0, Math.trunc(n) || 0), Number.MAX_SAFE_INTEGER)
const millis = (seconds) => whole(seconds * 1000)
const count = (n) => (n === undefined ? undefined : whole(n))

// Ends a run. Any other error is a retry by the job's backoff.
class Verdict extends Error {
  constructor(frame) {
    super(frame.error ?? frame.type)
    this.frame = frame
  }
}
// Retries after so many seconds, or by the job's backoff. `pause: true`: its group waits as well, or its queue.
const retry = (error, { after, pause } = {}) =>
  new Verdict({ type: 'retry', error: text(error), after_ms: after === undefined ? undefined : millis(after), pause: pause ? true : undefined })
// Runs the job again after so many seconds. No attempt is counted.
const snooze = (after) => new Verdict({ type: 'snooze', after_ms: millis(after) })
const dead = (error) => new Verdict({ type: 'dead', error: text(error) })
const cancel = () => new Verdict({ type: 'cancel' })

// A job and its run. It has the fields of its frame (`id`, `kind`, `attempt`, `headers`, …), `payload` as a Buffer, and `signal`, which
// aborts when the run has to end soon; the reason is 'timeout', 'cancelled' or 'stop'.
class Job {
  #write
  #enqueue
  constructor(frame, payload, signal, write, enqueue) {
    Object.assign(this, { group: null, tags: [], headers: {} }, frame, { payload, signal })
    this.#write = write
    this.#enqueue = enqueue
  }
  json() {
    return JSON.parse(this.payload)
  }
  progress(done, total, message) {
    this.#write({ type: 'progress', run: this.run, done: count(done), total: count(total), message: message && text(message) })
  }
  log(line) {
    this.#write({ type: 'log', run: this.run, text: text(line) })
  }
  // Enqueues a job: the fields of a line of `punctual push --batch`. Returns the store's answer.
  enqueue(kind, payload, options = {}) {
    return this.#enqueue({ ...options, kind, payload })
  }
}

// Runs up to `slots` jobs at once until the worker ends.
function work(handler, { slots = 1 } = {}) {
  const pipe = new net.Socket({ fd: 0, readable: true, writable: true })
  const runs = new Map()
  const calls = new Map()
  const waiting = [] // enqueues that wait for their call
  let [buffer, stopping, lastCall] = [Buffer.alloc(0), false, 0]

  function write(frame, body = Buffer.alloc(0)) {
    const header = Buffer.from(JSON.stringify(body.length ? { ...frame, bytes: body.length } : frame))
    const length = Buffer.alloc(4)
    length.writeUInt32BE(header.length)
    pipe.write(Buffer.concat([length, header, body]))
  }
  function enqueue(job) {
    return new Promise((resolve, reject) => {
      waiting.push({ body: Buffer.from(JSON.stringify(job)), resolve, reject })
      call()
    })
  }
  function call() {
    while (waiting.length && calls.size < CALLS) {
      const { body, ...promise } = waiting.shift()
      calls.set(++lastCall, promise)
      write({ type: 'enqueue', call: lastCall }, body)
    }
  }
  // The verdict of a run whose work is done. No result makes it run again.
  function done(frame, result) {
    let [body, content_type] = [result, 'application/octet-stream']
    if (!Buffer.isBuffer(result)) {
      try {
        const json = JSON.stringify(result)
        body = json === undefined ? undefined : Buffer.from(json)
      } catch (error) {
        const lost = text('the result was not kept, because it cannot be written as JSON: ' + String(error))
        console.error(`job ${frame.id} is done, but ${lost}`)
        write({ type: 'log', run: frame.run, text: lost })
        body = undefined
      }
      content_type = 'application/json'
    }
    if (body === undefined) return [{ type: 'done' }]
    if (body.length > RESULT_MAX) throw dead(`the job was done, but its result has ${body.length} bytes, and ${RESULT_MAX} is the most`)
    return [{ type: 'done', content_type }, body]
  }
  async function run(frame, payload) {
    const abort = new AbortController()
    runs.set(frame.run, abort)
    let verdict, body
    try {
      ;[verdict, body] = done(frame, await handler(new Job(frame, payload, abort.signal, write, enqueue)))
    } catch (error) {
      if (!(error instanceof Verdict)) console.error(error)
      verdict = error instanceof Verdict ? error.frame : { type: 'retry', error: text(error) }
    }
    runs.delete(frame.run)
    write({ ...verdict, run: frame.run }, body)
    if (stopping && !runs.size) pipe.end(() => process.exit(0))
  }
  function take(frame, body) {
    if (frame.type === 'hello') write({ type: 'ready', protocol: 1, slots })
    else if (frame.type === 'job') run(frame, body)
    else if (frame.type === 'cancel') runs.get(frame.run)?.abort(frame.reason)
    else if (frame.type === 'stop') {
      stopping = true
      if (!runs.size) pipe.end(() => process.exit(0))
    } else if (calls.has(frame.call)) {
      const { resolve, reject } = calls.get(frame.call)
      calls.delete(frame.call)
      call()
      if (frame.type === 'enqueued') resolve(frame)
      else reject(new Error(`${frame.code}: ${frame.message}`))
    }
  }
  pipe.on('data', (more) => {
    buffer = buffer.length ? Buffer.concat([buffer, more]) : more
    while (buffer.length >= 4) {
      const start = 4 + buffer.readUInt32BE(0)
      if (buffer.length < start) return
      const frame = JSON.parse(buffer.subarray(4, start))
      const end = start + (frame.bytes ?? 0)
      if (buffer.length < end) return
      const body = buffer.subarray(start, end)
      buffer = buffer.subarray(end)
      take(frame, body)
    }
  })
  // Its worker is gone.
  pipe.on('close', () => process.exit(0))
  pipe.on('error', () => process.exit(0))
}

module.exports = { work, retry, snooze, dead, cancel }
