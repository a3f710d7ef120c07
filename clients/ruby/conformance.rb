# frozen_string_literal: true

# The worker that the conformance test of pipe workers drives: each kind of job is one case.

require 'tempfile'
require_relative 'punctual_worker'

# Makes a file, since notes are stored now and then only.
def begun(job) = File.write(job.json['begun'], "begun\n")

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
