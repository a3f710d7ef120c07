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
  CALLS = 200 # enqueues at once; a worker allows 1,000

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
  # Threads of the handler may share it. A process that the handler forks may not: its calls raise.
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
    def cancelled = @pipe.why(run)

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
      @buffer, @frames, @cancelled, @answers, @calls = String.new, [], {}, {}, 0
      @writing, @lock, @news, @is_read, @pid = Mutex.new, Mutex.new, ConditionVariable.new, false, Process.pid
      $stdin.reopen(File::NULL)
      $stdout.sync = true
    end

    # Refuses a forked process: it would take what its parent has to read.
    def own
      raise 'a forked process cannot use the job of its parent' unless Process.pid == @pid
    end

    def write(frame, body = '')
      own
      frame = frame.merge(bytes: body.bytesize) unless body.empty?
      header = JSON.generate(frame)
      @writing.synchronize { @socket.write([header.bytesize].pack('N') + header.b + body.b) }
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
        @lock.synchronize { keep(frame, body) }
      end
    rescue EOFError, Errno::ECONNRESET
      exit!(0)
    end

    def keep(frame, body)
      if frame['type'] == 'cancel' then @cancelled[frame['run']] = frame['reason']
      elsif @answers.key?(frame['call']) then @answers[frame['call']] = frame
      elsif !frame.key?('call') then @frames << [frame, body]
      end
    end

    # Returns what the block finds. One thread reads at a time, and keeps what it gets for all; the others wait for it.
    def read(waits: true)
      own
      loop do
        reads = false
        begin
          @lock.synchronize do
            @news.wait(@lock) while (found = yield).nil? && waits && @is_read
            return found if !found.nil? || @is_read || !(waits || @socket.wait_readable(0))

            @is_read = reads = true
          end
          fill
        ensure
          @lock.synchronize { @is_read = false; @news.broadcast } if reads
        end
      end
    end

    # Returns why a run has to end, or nil.
    def why(run) = read(waits: false) { @cancelled[run] }

    # Waits for a frame of these types.
    def next(*types)
      read do
        at = @frames.index { |frame, _| types.include?(frame['type']) }
        at && @frames.delete_at(at)
      end
    end

    def enqueue(job)
      own
      body = JSON.generate(job)
      call = @lock.synchronize do
        @news.wait(@lock) while @answers.size >= CALLS
        @answers[@calls += 1] = nil
        @calls
      end
      write({ type: 'enqueue', call: call }, body)
      answer = read { @answers[call] }
      raise ArgumentError, "#{answer['code']}: #{answer['message']}" if answer['type'] == 'refused'

      answer
    ensure
      @lock.synchronize { @answers.delete(call); @news.broadcast } if call
    end
  end

  # Runs one job after the other until the worker ends.
  def self.work
    pipe = Pipe.new
    pipe.next('hello')
    pipe.write({ type: 'ready', protocol: 1 })
    loop do
      frame, payload = pipe.next('job', 'stop')
      return if frame['type'] == 'stop'

      begin
        result = yield Job.new(pipe, frame, payload)
        verdict, body = done(pipe, frame, result)
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

  # The verdict of a run whose work is done. No result makes it run again.
  def self.done(pipe, frame, result)
    return [{ type: 'done' }, ''] if result.nil?

    body = result.is_a?(String) ? result : JSON.generate(result)
    raise dead("the job was done, but its result has #{body.bytesize} bytes, and #{RESULT_MAX} is the most") if body.bytesize > RESULT_MAX

    [{ type: 'done', content_type: result.is_a?(String) ? 'application/octet-stream' : 'application/json' }, body]
  rescue Verdict
    raise
  rescue StandardError, SystemStackError => e
    lost = text("the result was not kept, because it cannot be written as JSON: #{e.class}: #{text(e.message)}")
    warn "job #{frame['id']} is done, but #{lost}"
    pipe.write({ type: 'log', run: frame['run'], text: lost })
    [{ type: 'done' }, '']
  end
  private_class_method :done
end
