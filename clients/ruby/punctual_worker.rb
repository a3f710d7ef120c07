# frozen_string_literal: true

# Runs jobs of punctual: `punctual work --exec 'ruby worker.rb' --keep 4`. The protocol is in docs/pipe-workers.md.
#
#   require_relative 'punctual_worker'
#
#   Punctual.work do |job|
#     raise Punctual.retry('the receiver is busy', after: 5) unless deliver(job.json)
#   end

require 'json'
require 'socket'

module Punctual
  TEXT_MAX = 4096 # characters of an error or a line; the store keeps less
  RESULT_MAX = 64 * 1024

  def self.text(value) = value.to_s.dup.force_encoding('UTF-8').scrub[0, TEXT_MAX]
  def self.count(number) = number.to_i.clamp(0, 2**53)
  def self.millis(seconds) = count((seconds * 1000).round)

  # Ends a run. Any other error is a retry by the job's backoff.
  class Verdict < StandardError
    attr_reader :frame

    def initialize(frame)
      super(frame[:error] || frame[:type])
      @frame = frame.compact
    end
  end

  # Retries after so many seconds, or by the job's backoff. `pause: true`: its group waits as well, or its queue.
  def self.retry(error, after: nil, pause: nil)
    Verdict.new(type: 'retry', error: text(error), after_ms: after && millis(after), pause: pause)
  end

  # Runs the job again after so many seconds. No attempt is counted.
  def self.snooze(after) = Verdict.new(type: 'snooze', after_ms: millis(after))
  def self.dead(error) = Verdict.new(type: 'dead', error: text(error))
  def self.cancel = Verdict.new(type: 'cancel')

  # A job and its run. The fields of its frame are read by their names: `job['id']`, `job['attempt']`. `payload` has bytes.
  class Job
    attr_reader :payload

    def initialize(pipe, frame, payload)
      @pipe, @frame, @payload = pipe, { 'tags' => [], 'headers' => {} }.merge(frame), payload
    end

    def [](field) = @frame[field]
    def run = @frame['run']
    def kind = @frame['kind']
    def json = JSON.parse(payload, quirks_mode: true)

    # Why the run has to end soon: "timeout", "cancelled" or "stop"; else nil.
    def cancelled
      @pipe.look
      @pipe.cancelled[run]
    end

    def progress(done: nil, total: nil, message: nil)
      done, total = [done, total].map { |n| n && Punctual.count(n) }
      message &&= Punctual.text(message)
      @pipe.write({ type: 'progress', run: run, done: done, total: total, message: message }.compact)
    end

    def log(line) = @pipe.write({ type: 'log', run: run, text: Punctual.text(line) })

    # Enqueues a job: the fields of a line of `punctual push --batch`. Returns the store's answer.
    def enqueue(kind, payload = nil, **options) = @pipe.enqueue(options.merge(kind: kind, payload: payload))
  end

  # The frames of a worker and its child.
  class Pipe
    attr_reader :cancelled, :socket

    def initialize
      # Frames come and go on a copy of stdin, so that no other code and no other process reads or writes there. The copy is closed
      # with the object that made it, so that one is kept.
      @copy = $stdin.dup
      @socket = UNIXSocket.for_fd(@copy.fileno)
      @socket.autoclose = false
      @buffer, @frames, @cancelled, @calls, @lock = String.new, [], {}, 0, Mutex.new
      $stdin.reopen(File::NULL)
      $stdout.sync = true
    end

    def write(frame, body = '')
      frame = frame.merge(bytes: body.bytesize) unless body.empty?
      header = JSON.generate(frame)
      @lock.synchronize { @socket.write([header.bytesize].pack('N') + header.b + body.b) }
    end

    # Waits for bytes, and keeps the frames that are whole. Ends the process when its worker is gone.
    def fill
      @buffer << @socket.readpartial(1 << 16)
      while @buffer.bytesize >= 4 && @buffer.bytesize >= (start = 4 + @buffer.unpack1('N'))
        frame = JSON.parse(@buffer.byteslice(4, start - 4).force_encoding('UTF-8'))
        bytes = frame.fetch('bytes', 0)
        return if @buffer.bytesize < start + bytes

        body = @buffer.byteslice(start, bytes)
        @buffer = @buffer.byteslice((start + bytes)..)
        frame['type'] == 'cancel' ? @cancelled[frame['run']] = frame['reason'] : @frames << [frame, body]
      end
    rescue EOFError, Errno::ECONNRESET
      exit!(0)
    end

    def look
      fill while @socket.wait_readable(0)
    end

    def next
      loop do
        at = @frames.index { |frame, _| yield frame }
        return @frames.delete_at(at) if at

        fill
      end
    end

    def enqueue(job)
      call = (@calls += 1)
      write({ type: 'enqueue', call: call }, JSON.generate(job))
      answer, = self.next { |frame| frame['call'] == call }
      raise ArgumentError, "#{answer['code']}: #{answer['message']}" if answer['type'] == 'refused'

      answer
    end
  end

  # Runs one job after the other until the worker ends.
  def self.work
    pipe = Pipe.new
    pipe.next { |frame| frame['type'] == 'hello' }
    pipe.write({ type: 'ready', protocol: 1 })
    loop do
      frame, payload = pipe.next { |it| %w[job stop].include?(it['type']) }
      return if frame['type'] == 'stop'

      body = ''
      begin
        result = yield Job.new(pipe, frame, payload)
        verdict = { type: 'done' }
        body = result.is_a?(String) ? result : JSON.generate(result) unless result.nil?
        verdict[:content_type] = result.is_a?(String) ? 'application/octet-stream' : 'application/json' unless result.nil?
        raise dead("the job was done, but its result has #{body.bytesize} bytes, and #{RESULT_MAX} is the most") if body.bytesize > RESULT_MAX
      rescue Verdict => e
        verdict, body = e.frame, ''
      rescue StandardError => e
        warn e.full_message(highlight: false)
        verdict, body = { type: 'retry', error: text("#{e.class}: #{text(e.message)}") }, ''
      end
      pipe.cancelled.clear
      pipe.write(verdict.merge(run: frame['run']), body)
    end
  end
end
