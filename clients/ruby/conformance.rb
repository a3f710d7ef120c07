# frozen_string_literal: true

# The worker that the conformance test of pipe workers drives: each kind of job is one case.

require 'tempfile'
require_relative 'punctual_worker'

# Makes a file, since notes are stored now and then only.
def begun(job) = File.write(job.json['begun'], "begun\n")

# Enqueues from threads, beside one that looks whether the run has to end. Returns how many jobs there are.
def threads(job)
  over = false
  watch = Thread.new { Thread.pass until over || job.cancelled }
  shares = Array.new(8) { Thread.new { Array.new(40) { |i| job.enqueue('next', i, queue: 'other')['id'] } } }
  shares.flat_map(&:value).uniq.size
ensure
  over = true
  watch.join
end

# Returns how many calls a forked process is refused.
def forked(job)
  calls = [-> { job.cancelled }, -> { job.log('a') }, -> { job.progress(done: 1) }, -> { job.enqueue('next', queue: 'other') }]
  pid = fork do
    refused = calls.count do |call|
      call.call
      false
    rescue RuntimeError
      true
    end
    exit!(refused)
  end
  Process.wait2(pid).last.exitstatus
end

# Files that were opened after a collection: no frame may get into them.
files = []

Punctual.work do |job|
  raise 'a frame is in a file' if files.any? { |file| file.size.positive? }

  GC.start
  files = Array.new(3) { Tempfile.new('punctual') }
  puts 'this goes to stderr'
  case job.kind
  when 'result'
    { id: job['id'], queue: job['queue'], attempt: job['attempt'], tags: job['tags'], got: job.json }
  when 'length' then { length: job.payload.bytesize, sum: job.payload.sum(64) }
  when 'bytes' then "\x00\xff".b
  when 'retry' then raise Punctual.retry('busy')
  when 'later' then raise Punctual.retry('busy', after: 60)
  when 'pause' then raise Punctual.retry('busy', after: 60, pause: true)
  when 'snooze' then raise Punctual.snooze(60)
  when 'dead' then raise Punctual.dead('no such user')
  when 'cancel' then raise Punctual.cancel
  when 'fail' then raise 'it broke'
  when 'notes'
    job.progress(done: 1, total: 2, message: 'half')
    job.log('a line')
    nil
  when 'enqueue' then { status: job.enqueue('next', { a: 1 }, queue: 'other')['status'] }
  when 'refused' then job.enqueue('next', queue: '')
  when 'threads' then threads(job)
  when 'forked' then forked(job)
  when 'odd' then ["caf\xe9"]
  when 'polite'
    begun(job)
    sleep 0.01 until job.cancelled
    raise Punctual.retry("ended early: #{job.cancelled}")
  when 'deaf'
    trap('TERM', 'IGNORE')
    begun(job)
    sleep 600
  when 'slow'
    begun(job)
    sleep 0.01 until File.exist?(job.json['until'])
    nil
  when 'crash'
    warn 'last words'
    exit!(3)
  when 'garbage'
    job.instance_variable_get(:@pipe).socket.write("Hello, world\n")
    sleep 600
  when 'half'
    job.instance_variable_get(:@pipe).socket.write("\x00\x00\x00\x09{".b)
    exit!(0)
  end
end
