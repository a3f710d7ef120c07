-- Reads and writes records, histories and runs, and their parts.

local now = shard.now
local tally, notify, notify_named, hint = pending.tally, pending.notify, pending.notify_named, pending.hint
local NONE = pack('>I6', 0)

local function text(n) return string.format('%.0f', n) end
local function has(flags, bit) return bit <= flags % (2 * bit) end
local function at6(ms) return pack('>I6', ms) end
-- Returns the bounds of the members of a sorted set that start with `prefix`, as ZRANGEBYLEX takes them.
local function within(prefix) return '[' .. prefix, '(' .. prefix .. BEHIND end

-- Returns bytes as a chunk: the length, in one byte or in 255 and four, then the bytes.
local function as_chunk(bytes)
    return (#bytes < 255 and char(#bytes) or '\255' .. pack('>I4', #bytes)) .. bytes
end

-- Removes a member that no script wrote, because it would be met again and again: something else damaged it. An audit tells how many were
-- removed, and finds the jobs that they were of. Returns whether this call may remove more.
local function set_aside(key, member)
    call('ZREM', key, member)
    if type(redis.pcall('HINCRBY', $STATE, 'aside', 1)) ~= 'number' then call('HSET', $STATE, 'aside', 1) end
    notify_named('$damage')
    shard.aside = (shard.aside or 0) + 1
    return shard.aside < $ASIDE_MAX
end
-- Members are in the order of their bytes only while all have the same score: one with another score hides others. Returns up to `limit`
-- members with a lower one and as many with a higher one. `mends`: gives them the score of the others.
local function out_of_order(key, limit, mends)
    local all = call('ZRANGEBYSCORE', key, '-inf', '(0', 'LIMIT', 0, limit)
    for _, member in ipairs(call('ZRANGEBYSCORE', key, '(0', '+inf', 'LIMIT', 0, limit)) do all[#all + 1] = member end
    for _, member in ipairs(mends and all or {}) do call('ZADD', key, 0, member) end
    return all
end
-- Returns the first members of a range, as the command `verb` takes it. Sets aside those of another length. After too many it returns
-- none: the next call goes on.
local function whole(verb, key, from, to, limit, length, or_length)
    while true do
        local members, is_whole, may_go_on = call(verb, key, from, to, 'LIMIT', 0, limit), true, true
        for _, member in ipairs(members) do
            if #member ~= length and #member ~= or_length and may_go_on then is_whole, may_go_on = false, set_aside(key, member) end
        end
        if is_whole then return members end
        if not may_go_on then return {} end
    end
end

shard.swept = {reclaimed = 0, expired = 0, removed = 0, forgotten = 0}

-- Returns the position after a chunk. A chunk has its length, in one byte or in 255 and four, then its bytes.
local function behind_chunk(rec, at)
    local length = byte(rec, at)
    if length < 255 then return at + 1 + length end
    return at + 5 + unp('>I4', rec, at + 1)
end
-- Returns the bytes of a chunk (nil if there are none), and the position after it.
local function chunk(rec, at)
    local behind = behind_chunk(rec, at)
    local from = at + (byte(rec, at) < 255 and 1 or 5)
    return from < behind and sub(rec, from, behind - 1) or nil, behind
end

-- Reads the head of a record:
--   flags: 1 run_at is not created_at, 2 it can expire, 4 a lease of its own, 8 max_attempts was chosen; 16 a unique
--     key, 32 a concurrency key and how many of it can run, 64 a group, 128 the payload is stored apart
--   level + 16 × scope, q, bytes before the payload, created_at
--   the times of the flags 1 and 2; with flag 128, how many bytes the payload has
--   the other fields of the flags, in that order
--   two chunks of the client: what a replacement changes, and what stays
--   the payload, if it is not stored apart
local function head(job, rec)
    local flags, level, q, skip, created, at = unp('>BBc3I3I6', rec)
    job.q, job.level, job.scope, job.created = q, level % 16, math.floor(level / 16), created
    if has(flags, 1) then job.run_at, at = unp('>I6', rec, at) else job.run_at = created end
    if has(flags, 2) then job.expires, at = unp('>I6', rec, at) end
    job.times_end, job.apart = at - 1, nil
    if has(flags, 128) then job.apart, at = unp('>I4', rec, at) end
    job.flags, job.fields_at = flags, at
    if has(flags, 4) then job.lease, at = unp('>I4', rec, at) end
    if has(flags, 8) then job.max_attempts, at = unp('>I2', rec, at) else job.max_attempts = $MAX_ATTEMPTS_DEFAULT end
    if has(flags, 16) then job.digest, job.window, at = unp('>c16I7', rec, at) end
    if has(flags, 32) then job.key, job.most, at = unp('>c16I4', rec, at) end
    if has(flags, 64) then job.gid, at = unp('>c16', rec, at) end
    job.asked_at, job.payload_at, job.bytes = at, skip + 1, job.apart or #rec - skip
    if job.bytes < 0 or job.apart and #rec ~= skip then error('a record ends before or after its payload') end
end
-- Returns a record, and its payload if that is stored apart. `flags`: without 128, which is set here. `fields`: all that comes after the
-- times and the size, up to the payload.
local function record_of(flags, level, q, times, fields, payload)
    local size, apart = '', nil
    if $WITHIN_RECORD_MAX < #payload then
        flags, size, payload, apart = flags + 128, pack('>I4', #payload), '', payload
    end
    return pack('>BB', flags, level) .. q .. pack('>I3', 8 + #times + #size + #fields) .. times .. size .. fields .. payload, apart
end
-- Replaces the record of a job.
local function put_record(job, rec, apart)
    -- As in enqueue.lua, a crash of the server in between leaves a payload without a record at most.
    if apart then
        if shard.format < $FORMAT then shard.put_shard() end
        call('HSET', $PAYLOADS, job.id, apart)
    end
    call('HSET', $RECORDS, job.id, rec)
    if job.apart and not apart then call('HDEL', $PAYLOADS, job.id) end
    shard.bytes = shard.bytes + (job.apart or 0) / $REMOVED_PER_READ
end
-- Returns the payload of a record if it is stored apart ('' if it is not there), else nil.
local function payload_apart(id, rec) return 128 <= (byte(rec) or 0) and (call('HGET', $PAYLOADS, id) or '') or nil end

-- Returns the kind of a record's job: the client's first chunk has it after the content type. Returns '' if it cannot
-- be read.
local function kind_of(rec)
    local is_sound, kind = pcall(function()
        local job = {}
        head(job, rec)
        local asked = chunk(rec, job.asked_at)
        return chunk(asked, behind_chunk(asked, 1))
    end)
    return is_sound and kind and #kind < 255 and kind or ''
end

-- Reads a history: flags, then their fields in this order:
--   1 it was started once
--   2 run_at and level are these
--   4 it does not expire any more
--   8 attempt, expired leases and snoozes in a row
--   16 version
--   32 it has ended: state and when
--   64 reason
--   128 three chunks, then the failures. The chunks: the result (its content type as a chunk, then its bytes; '' if
--     there is none); notes, which are the client's own; a byte if a caller waits for the end.
local function history(job, x)
    job.attempt, job.expired_leases, job.snoozes, job.version, job.failures = 1, 0, 0, 1, {}
    job.history, job.x = x and '\1' or '\0', x or ''
    if not x then return end
    local flags, at, length = byte(x, 1), 2, nil
    job.started = has(flags, 1)
    if has(flags, 2) then
        job.moved = true
        job.run_at, job.level, at = unp('>I6B', x, at)
    end
    if has(flags, 4) then job.unexpiring, job.expires = true, nil end
    if has(flags, 8) then job.attempt, job.expired_leases, job.snoozes, at = unp('>I4BI2', x, at) end
    if has(flags, 16) then job.version, at = unp('>I4', x, at) end
    if has(flags, 32) then job.state, job.ended, at = unp('>BI6', x, at) end
    if has(flags, 64) then
        length, at = unp('>I2', x, at)
        job.reason = sub(x, at, at + length - 1)
        at = at + length
    end
    if has(flags, 128) then
        job.result, at = chunk(x, at)
        job.notes, at = chunk(x, at)
        job.watched, at = chunk(x, at)
    end
    while at <= #x do
        length, at = unp('>I2', x, at)
        job.failures[#job.failures + 1] = sub(x, at, at + length - 1)
        at = at + length
    end
end
local function history_of(job)
    local flags, out = 0, {''}
    local function put(bit, bytes)
        flags = flags + bit
        out[#out + 1] = bytes
    end
    if job.started then put(1, '') end
    if job.moved then put(2, pack('>I6B', job.run_at, job.level)) end
    if job.unexpiring then put(4, '') end
    if 1 < job.attempt or 0 < job.expired_leases or 0 < job.snoozes then
        put(8, pack('>I4BI2', job.attempt, job.expired_leases, job.snoozes))
    end
    if 1 < job.version then put(16, pack('>I4', job.version)) end
    if job.ended then put(32, pack('>BI6', job.state, job.ended)) end
    if job.reason then put(64, pack('>I2', #job.reason) .. job.reason) end
    if 0 < #job.failures or job.result or job.notes or job.watched then
        put(128, as_chunk(job.result or '') .. as_chunk(job.notes or '') .. as_chunk(job.watched or ''))
        for _, failure in ipairs(job.failures) do out[#out + 1] = pack('>I2', #failure) .. failure end
    end
    out[1] = char(flags)
    return 0 < flags and concat(out) or ''
end
local function put_history(job)
    local x = history_of(job)
    if x ~= '' then
        call('HSET', $HISTORIES, job.id, x)
        job.history = '\1'
    elseif job.history == '\1' then
        call('HDEL', $HISTORIES, job.id)
        job.history = '\0'
    end
end

-- Reads a run:
--   fence, q, until
--   flags: 1 a cancel was requested, 2 the job has a history, 4 its end frees a key; 8 it has a concurrency key, 16 a
--     group, 32 it has company (S9)
--   bytes of the payload, when it started, how long an extension lasts, the digests of key, concurrency key and group
--   the worker: its length in a byte, its name, zeros up to 64 bytes. So no hash of runs is short. A short hash would
--     be searched from end to end each time.
local function run_of(row)
    local run, at = {}, nil
    run.fence, run.q, run.till, run.flags, run.bytes, run.started, run.lasts, at = unp('>I8c3I6BI4I6I4', row)
    run.history = has(run.flags, 2) and '\1' or '\0'
    if has(run.flags, 4) then run.digest, at = unp('>c16', row, at) end
    if has(run.flags, 8) then run.key, at = unp('>c16', row, at) end
    if has(run.flags, 16) then run.gid, at = unp('>c16', row, at) end
    run.tail = sub(row, at)
    run.worker = sub(run.tail, 2, 1 + byte(run.tail))
    return run
end
-- Notes that an expired lease of this run may be the fault of other jobs from now on (S9).
local function set_company(run)
    if not has(run.flags, 32) then run.flags = run.flags + 32 end
end
-- Notes that the job of a run has a history from now on.
local function set_history(run)
    if not has(run.flags, 2) then run.flags = run.flags + 2 end
end
local function put_run(id, run)
    local row = pack('>I8', run.fence) .. run.q .. pack('>I6BI4I6I4', run.till, run.flags, run.bytes, run.started,
        run.lasts) .. (run.digest or '') .. (run.key or '') .. (run.gid or '') .. run.tail
    call('HSET', $RUNS, id, row)
    return row
end

rules.set_aside, rules.out_of_order, rules.whole, rules.within, rules.as_chunk, rules.behind_chunk, rules.head, rules.record_of, rules.put_record = set_aside, out_of_order, whole, within, as_chunk, behind_chunk, head, record_of, put_record
rules.payload_apart, rules.kind_of, rules.history, rules.history_of, rules.put_history = payload_apart, kind_of, history, history_of, put_history
rules.run_of, rules.set_company, rules.set_history, rules.put_run = run_of, set_company, set_history, put_run
