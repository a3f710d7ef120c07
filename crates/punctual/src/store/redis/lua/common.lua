-- What the scripts share: the time, the rows, the places, and the steps between them. Read → decide → write.
--
-- KEYS, all of one shard, hence of one slot (an id stands for 16 bytes, q for a queue's number of 3 bytes; whole numbers
-- are big-endian, so that members sort as they should):
--   1 j  HASH  id → record                        what was asked for; see head()
--   2 x  HASH  id → past                          what runs, moves and the end left behind; only where there is something
--   3 t  ZSET  q level run_at6 id past1           waiting jobs in the order in which they run (S6)
--   4 o  ZSET  q expires6 id                      waiting jobs that may expire
--   5 r  HASH  id → run                           running jobs: their leases; see run_of()
--   6 l  ZSET  q until6 id                        their leases by time
--   7 e  ZSET  q state1 ended6 id bytes4          ended jobs as far as they are kept
--   8 u  HASH  digest16 → id until6               unique keys that are held; until: of a window
--   9 v  ZSET  until6 digest16                    windows by their end
--  10 k  ZSET  q ended6 id                        remembered ids by the end of their jobs
--  11 m  HASH  q id → ended6                      the same, by id
--  12 p  HASH  instance8 verb1 → number8 answer   the last call of each instance (S3)
--  13 a  ZSET  instance8 verb1 @ ms               the same, by time
--  14 s  HASH  'fence', 'turn' → fence8, seen7 grace7
--  15 q  HASH  name → q
--  16 i  HASH  q → settings                       see queue()
--  17 n  ZSET  name                               queues by name
--  18 c  HASH  q what1 → number                   counters: 'b' bytes of live jobs, 'r' waiting jobs in a later attempt,
--                                                 a state's number: bytes of jobs kept in it
--  19 d  ZSET  id                                 all ids, for listings
--  20 …  ZSET  'r' @ ms                           doorbells of the queues named in the call, in their order
-- ARGV[1]: now in Unix ms, or '' for the server's clock (S14).
-- In t, o, l, e, v, k, n and d all scores are 0: membership in t, r and e IS the state, order is that of the bytes.
local J, X, T, O, R, L, E, U, V, K, M, P, A, S, Q, I, N, C, D = unpack(KEYS, 1, 19)
local BELLS = 20 -- where the doorbells begin
local call, pack, unp = redis.call, struct.pack, struct.unpack
local sub, char, byte, concat, min, max = string.sub, string.char, string.byte, table.concat, math.min, math.max
local WAITING, DONE, CANCELLED, DEAD, RUNNING = 0, 1, 2, 3, 4
local UNTIL_START, WINDOW = 1, 2
local LEVELS = 3
local END = 253402300799999 -- the last instant
local HEARTBEAT, JUMP = 5000, 20000
local ID_MEMORY, ID_MEMORY_MAX, CALL_MEMORY = 86400000, 1000000, 3600000
local POISON_LIMIT, SNOOZES_MAX, SNOOZE_MIN, FAILURES_MAX = 3, 10000, 100, 8
local TAKE_BACK_MAX, CANDIDATES_EXTRA, SWEEP_RIDE_MAX, BYTES_MAX = 32, 256, 100, 1048576
local NEVER = pack('>I6', 0)

-- A server that is full lets a script go on whose first write frees, be it nothing: what drains must drain (S17).
local function drains() call('ZREM', L, '') end

-- now, and the microseconds that have passed of it.
local now, into = tonumber(ARGV[1]), 0
if not now then
    local t = call('TIME')
    now, into = t[1] * 1000 + math.floor(t[2] / 1000), t[2] % 1000
end

local function text(n) return string.format('%.0f', n) end
local function has(flags, bit) return bit <= flags % (2 * bit) end
local function at6(ms) return pack('>I6', ms) end

-- The first byte behind a chunk: its length, in one byte or in 255 and four, then its bytes.
local function behind_chunk(rec, at)
    local length = byte(rec, at)
    if length < 255 then return at + 1 + length end
    return at + 5 + unp('>I4', rec, at + 1)
end

-- ── counters ──

local tallies = {}
local function tally(q, what, by)
    local key = q .. what
    tallies[key] = (tallies[key] or 0) + by
end
local function put_tallies()
    for key, by in pairs(tallies) do
        if by ~= 0 then call('HINCRBY', C, key, text(by)) end
    end
    tallies = {}
end

-- ── queues ──

local SETTINGS = '>BI4I4' .. string.rep('I7', 11)
local queues = {}
-- The settings of a queue: flags (1 paused, 2 lifo), version, lease, caps (0: none, else 1 more), bounds of what is kept
-- of each state (age in ms, jobs, bytes), the name as a chunk; then the same as JSON, which only callers read.
local function queue(q)
    local row = queues[q]
    if row then return row end
    local stored = call('HGET', I, q)
    local flags, version, lease, jobs, bytes, n1, n2, n3, c1, c2, c3, d1, d2, d3, at =
        unp(SETTINGS, stored)
    row = {
        stored = stored, name = sub(stored, at, behind_chunk(stored, at) - 1),
        paused = has(flags, 1), lifo = has(flags, 2), version = version, lease = lease,
        max_jobs = 0 < jobs and jobs - 1, max_bytes = 0 < bytes and bytes - 1,
        keep = {{n1, n2, n3}, {c1, c2, c3}, {d1, d2, d3}},
    }
    queues[q] = row
    return row
end
local function keeps_nothing(keep) return keep[1] == 0 or keep[2] == 0 or keep[3] == 0 end
-- Makes a queue with these settings.
local function new_queue(name, row)
    local q = pack('>I3', call('HLEN', Q) + 1)
    call('HSET', Q, name, q)
    call('ZADD', N, 0, name)
    call('HSET', I, q, row)
    return q
end
-- The first key behind all that start with this one.
local function behind(prefix)
    return sub(prefix, 1, -2) .. char(byte(prefix, -1) + 1)
end
-- Bounds of the members of a sorted set that start with `prefix`, as ZRANGEBYLEX takes them. Where it ends in 255 the carry
-- goes into the byte before.
local function within(prefix)
    local last = prefix
    while byte(last, -1) == 255 do last = sub(last, 1, -2) end
    return '[' .. prefix, '(' .. behind(last)
end

-- ── rings ──

local bells, rings = {}, {} -- q → key of its bell; q → when
local function ring(q, ms)
    if not rings[q] or ms < rings[q] then rings[q] = ms end
end
-- Rings the bells whose keys were named; answers those that the caller must ring: name as a chunk, ms6.
local function put_rings()
    local left = {}
    for q, ms in pairs(rings) do
        if bells[q] then
            call('ZADD', bells[q], 'LT', ms <= now and 0 or text(ms), 'r')
        else
            left[#left + 1] = queue(q).name .. at6(ms <= now and 0 or ms)
        end
    end
    return concat(left)
end

-- ── time ──

local seen, grace = 0, 0
local function read_turn()
    local row = call('HGET', S, 'turn')
    if row then seen, grace = unp('>I7I7', row) end
end
-- Looks for a jump of the clock, then leaves the time of this call (S14).
local function turn()
    read_turn()
    if now + HEARTBEAT < grace then grace = 0 end
    if 0 < seen and seen - 1 + JUMP < now and 0 < call('HLEN', R) then grace = now + HEARTBEAT end
    seen = now + 1
    call('HSET', S, 'turn', pack('>I7I7', seen, grace))
end
-- Until when nothing is taken back, if so.
local function no_take_back()
    return now < grace and grace <= now + HEARTBEAT and grace
end

-- ── jobs ──

-- The head of a record: flags (1 created_at is not run_at, 2 expires, 4 a lease of its own, 8 max_attempts is not 20, 16 a
-- unique key), level + 16 × scope, q, run_at, then what the flags say, then two chunks that are the client's own (what a
-- replacement changes, and what stays) and the payload.
local function head(job, rec)
    local flags, level, q, run_at, at = unp('>BBc3I6', rec)
    job.q, job.run_at, job.level, job.scope = q, run_at, level % 16, math.floor(level / 16)
    if has(flags, 1) then job.created, at = unp('>I6', rec, at) else job.created = run_at end
    if has(flags, 2) then job.expires, at = unp('>I6', rec, at) end
    if has(flags, 4) then job.lease, at = unp('>I4', rec, at) end
    if has(flags, 8) then job.max_attempts, at = unp('>I2', rec, at) else job.max_attempts = 20 end
    if has(flags, 16) then job.digest, job.window, at = unp('>c16I7', rec, at) end
    job.asked_at = at
    job.within_at = behind_chunk(rec, at)
    job.payload_at = behind_chunk(rec, job.within_at)
    job.bytes = #rec - job.payload_at + 1
end

-- A past: flags, then what they say: 1 started once, 2 run_at and level are these, 4 expires no more, 8 counts, 16 version,
-- 32 ended: state and when, 64 reason, 128 failures.
local function past(job, x)
    job.attempt, job.crashes, job.snoozes, job.version, job.failures = 1, 0, 0, 1, {}
    job.past, job.x = x and '\1' or '\0', x or ''
    if not x then return end
    local flags, at, length = byte(x, 1), 2, nil
    job.started = has(flags, 1)
    if has(flags, 2) then
        job.moved = true
        job.run_at, job.level, at = unp('>I6B', x, at)
    end
    if has(flags, 4) then job.unexpiring, job.expires = true, nil end
    if has(flags, 8) then job.attempt, job.crashes, job.snoozes, at = unp('>I4BI2', x, at) end
    if has(flags, 16) then job.version, at = unp('>I4', x, at) end
    if has(flags, 32) then job.state, job.ended, at = unp('>BI6', x, at) end
    if has(flags, 64) then
        length, at = unp('>I2', x, at)
        job.reason = sub(x, at, at + length - 1)
        at = at + length
    end
    while at <= #x do
        length, at = unp('>I2', x, at)
        job.failures[#job.failures + 1] = sub(x, at, at + length - 1)
        at = at + length
    end
end
local function past_of(job)
    local flags, out = 0, {''}
    local function put(bit, bytes)
        flags = flags + bit
        out[#out + 1] = bytes
    end
    if job.started then put(1, '') end
    if job.moved then put(2, pack('>I6B', job.run_at, job.level)) end
    if job.unexpiring then put(4, '') end
    if 1 < job.attempt or 0 < job.crashes or 0 < job.snoozes then
        put(8, pack('>I4BI2', job.attempt, job.crashes, job.snoozes))
    end
    if 1 < job.version then put(16, pack('>I4', job.version)) end
    if job.ended then put(32, pack('>BI6', job.state, job.ended)) end
    if job.reason then put(64, pack('>I2', #job.reason) .. job.reason) end
    if 0 < #job.failures then
        put(128, '')
        for _, failure in ipairs(job.failures) do out[#out + 1] = pack('>I2', #failure) .. failure end
    end
    out[1] = char(flags)
    return 0 < flags and concat(out) or ''
end
local function put_past(job)
    local x = past_of(job)
    if x ~= '' then
        call('HSET', X, job.id, x)
        job.past = '\1'
    elseif job.past == '\1' then
        call('HDEL', X, job.id)
        job.past = '\0'
    end
end

-- A run: fence, q, until, started, how long an extension lasts, flags (1 a cancel was asked for), bytes of the payload,
-- digest of a key that the end frees or zeros, past, worker.
local function run_of(row)
    local run = {}
    run.fence, run.q, run.till, run.started, run.lasts, run.flags, run.bytes, run.digest, run.past, run.worker =
        unp('>I8c3I6I6I4BI4c16c1', row)
    run.worker = sub(row, 50)
    return run
end
local function run_row(run)
    return pack('>I8', run.fence) .. run.q .. pack('>I6I6I4BI4', run.till, run.started, run.lasts, run.flags, run.bytes)
        .. run.digest .. run.past .. run.worker
end
local function put_run(id, run) call('HSET', R, id, run_row(run)) end

-- A job with its place, or nil.
local function load(id)
    local rec = call('HGET', J, id)
    if not rec then return nil end
    local job = {id = id, rec = rec, state = WAITING}
    head(job, rec)
    past(job, call('HGET', X, id))
    job.row = call('HGET', R, id)
    if job.row then
        job.state, job.run = RUNNING, run_of(job.row)
    end
    return job
end
-- Whether reads hide a job: it ended, and is past the age that its queue keeps it for (S17).
local function is_hidden(job)
    return job.ended and job.ended + queue(job.q).keep[job.state][1] <= now
end
local function is_derived(id) return math.floor(byte(id, 7) / 16) == 8 end

-- ── unique keys ──

-- Who holds a key (S4).
local function holder(digest)
    local row = call('HGET', U, digest)
    if not row then return nil end
    local id, till = unp('>c16I6', row)
    if 0 < till then
        if now < till then return id end
    elseif call('HEXISTS', J, id) == 1 then
        return id
    end
    return nil
end
local function put_key(digest, id, till)
    local row = call('HGET', U, digest)
    if row and sub(row, 17) ~= NEVER then call('ZREM', V, sub(row, 17) .. digest) end
    call('HSET', U, digest, id .. at6(till))
    if 0 < till then call('ZADD', V, 0, at6(till) .. digest) end
end
-- Until when a job holds its key, if that is settled by its enqueue; else 0.
local function window_end(job)
    return job.scope == WINDOW and min(job.created + job.window, END) or 0
end
local function free(digest, id)
    local row = call('HGET', U, digest)
    if row and sub(row, 1, 16) == id then
        call('HDEL', U, digest)
        if sub(row, 17) ~= NEVER then call('ZREM', V, sub(row, 17) .. digest) end
    end
end
local function free_key(job)
    if job.digest then free(job.digest, job.id) end
end

-- ── places ──

local function waiting_member(job) return job.q .. pack('>BI6', job.level, job.run_at) .. job.id .. job.past end
local function put_waiting(job)
    call('ZADD', T, 0, waiting_member(job))
    if job.expires then call('ZADD', O, 0, job.q .. at6(job.expires) .. job.id) end
    if 1 < job.attempt then tally(job.q, 'r', 1) end
end
local function leave_waiting(job)
    call('ZREM', T, waiting_member(job))
    if job.expires then call('ZREM', O, job.q .. at6(job.expires) .. job.id) end
    if 1 < job.attempt then tally(job.q, 'r', -1) end
end
local function leave_running(job)
    call('HDEL', R, job.id)
    call('ZREM', L, job.q .. at6(job.run.till) .. job.id)
end
local function ended_member(job) return job.q .. pack('>BI6', job.state, job.ended) .. job.id .. pack('>I4', job.bytes) end
local function leave_ended(job)
    call('ZREM', E, ended_member(job))
    tally(job.q, char(job.state), -job.bytes)
end
-- A derived id outlives its record (S17).
local function remember(q, id, ended)
    if not is_derived(id) or ended + ID_MEMORY <= now then return end
    local old = call('HGET', M, q .. id)
    if old then call('ZREM', K, q .. old .. id) end
    call('HSET', M, q .. id, at6(ended))
    call('ZADD', K, 0, q .. at6(ended) .. id)
end
-- Removes the record of a job that has left its place.
local function remove(job)
    call('HDEL', J, job.id)
    call('ZREM', D, job.id)
    if job.past == '\1' then call('HDEL', X, job.id) end
    remember(job.q, job.id, job.ended or now)
end
-- Ends a job that has left its place.
local function finish(job, state, reason)
    job.state, job.ended, job.reason = state, now, reason
    if job.scope ~= WINDOW then free_key(job) end
    tally(job.q, 'b', -job.bytes)
    if keeps_nothing(queue(job.q).keep[state]) then
        remove(job)
    else
        put_past(job)
        call('ZADD', E, 0, ended_member(job))
        tally(job.q, char(state), job.bytes)
    end
end

-- Removes a job that somebody deletes or purges; unlike age, that frees a window whose job never started.
local function delete(job)
    if job.state == WAITING then
        leave_waiting(job)
        tally(job.q, 'b', -job.bytes)
    else
        leave_ended(job)
    end
    if not (job.scope == WINDOW and job.started) then free_key(job) end
    remove(job)
end

-- When the first waiting job of a queue is due.
local function first_due(q)
    local first
    for level = 0, LEVELS - 1 do
        local from, to = within(q .. char(level))
        local member = call('ZRANGEBYLEX', T, from, to, 'LIMIT', 0, 1)[1]
        local due = member and unp('>I6', member, 5)
        if due and (not first or due < first) then first = due end
    end
    return first
end

-- ── runs that end (the same arithmetic as lifecycle.rs) ──

-- The end of a run. `next`: state, attempt, crashes, snoozes, run_at or nil, reason, failed (words or nil).
local function leave_run(job, next)
    local run = job.run
    leave_running(job)
    if next.failed then
        local failures = job.failures
        failures[#failures + 1] = pack('>I4I6I6I2', job.attempt, run.started, now, #run.worker) .. run.worker .. next.failed
        if FAILURES_MAX < #failures then table.remove(failures, 1) end
    end
    job.attempt, job.crashes, job.snoozes = next.attempt, next.crashes or 0, next.snoozes or 0
    job.started, job.run = true, nil
    if next.state ~= WAITING then return finish(job, next.state, next.reason) end
    job.state, job.reason = WAITING, next.reason
    if next.run_at and next.run_at ~= job.run_at then job.run_at, job.moved = next.run_at, true end
    put_past(job)
    put_waiting(job)
    ring(job.q, job.run_at)
end
local function low16(id) return byte(id, 15) * 256 + byte(id, 16) end
-- The end of a run whose lease is past its time (S9).
local function taken_back(job)
    local next = {attempt = job.attempt, crashes = job.crashes + 1, snoozes = job.snoozes, failed = 'lease taken back'}
    if has(job.run.flags, 1) then
        next.state, next.reason = CANCELLED, 'cancelled'
    elseif POISON_LIMIT <= next.crashes then
        next.state, next.reason = DEAD, 'crashes'
    elseif job.max_attempts <= job.attempt then
        next.state, next.reason = DEAD, 'attempts'
    else
        next.state, next.attempt = WAITING, job.attempt + 1
        if 2 <= next.crashes then
            local step = (next.crashes - 1) * job.run.lasts
            next.run_at = min(now + step + math.floor(step * low16(job.id) / 65536), END)
        end
    end
    leave_run(job, next)
    return next.state
end

-- ── upkeep (S17) ──

local swept = {expired = 0, removed = 0, forgotten = 0}
local function expire(q, limit)
    local due = call('ZRANGEBYLEX', O, '[' .. q, '(' .. q .. at6(now + 1), 'LIMIT', 0, limit)
    for _, member in ipairs(due) do
        local job = load(sub(member, 10))
        if job and job.state == WAITING then
            leave_waiting(job)
            finish(job, CANCELLED, 'expired')
        else
            call('ZREM', O, member)
        end
    end
    return #due
end
-- Removes ended jobs past a bound, oldest end first.
local ageless = false -- whether done and cancelled jobs go whatever their age
local function retire(q, state, limit)
    local from, to = within(q .. char(state))
    local first = call('ZRANGEBYLEX', E, from, to, 'LIMIT', 0, 1)
    if #first == 0 then return 0 end
    local keep = queue(q).keep[state]
    local count = call('ZLEXCOUNT', E, from, to)
    local bytes = tonumber(call('HGET', C, q .. char(state)) or 0) + (tallies[q .. char(state)] or 0)
    local function is_past(member)
        return keeps_nothing(keep) or unp('>I6', member, 5) + keep[1] <= now or keep[2] < count or keep[3] < bytes
            or ageless and state ~= DEAD
    end
    if not is_past(first[1]) then return 0 end
    local members, ids = {}, {}
    for _, member in ipairs(call('ZRANGEBYLEX', E, from, to, 'LIMIT', 0, limit)) do
        if not is_past(member) then break end
        local ended, id, size = unp('>I6c16I4', member, 5)
        count, bytes = count - 1, bytes - size
        members[#members + 1], ids[#ids + 1] = member, id
        tally(q, char(state), -size)
        remember(q, id, ended)
    end
    call('ZREM', E, unpack(members))
    call('HDEL', J, unpack(ids))
    call('ZREM', D, unpack(ids))
    call('HDEL', X, unpack(ids))
    return #ids
end
local function forget_ids(q, limit)
    local from, to = within(q)
    local old = call('ZRANGEBYLEX', K, from, to, 'LIMIT', 0, limit)
    if #old == 0 then return 0 end
    local over = call('ZLEXCOUNT', K, from, to) - ID_MEMORY_MAX
    for i, member in ipairs(old) do
        local ended, id = unp('>I6c16', member, 4)
        if over < i and now < ended + ID_MEMORY then return i - 1 end
        call('ZREM', K, member)
        call('HDEL', M, q .. id)
    end
    return #old
end
local function forget_windows(limit)
    local past_end = call('ZRANGEBYLEX', V, '-', '(' .. at6(now + 1), 'LIMIT', 0, limit)
    for _, member in ipairs(past_end) do
        call('ZREM', V, member)
        call('HDEL', U, sub(member, 7))
    end
    return #past_end
end
local function forget_calls(limit)
    local idle = call('ZRANGEBYSCORE', A, '-inf', text(now - CALL_MEMORY), 'LIMIT', 0, limit)
    for _, member in ipairs(idle) do
        call('ZREM', A, member)
        call('HDEL', P, member)
    end
    return #idle
end
-- Sweeps these queues in turn, then store-wide, at most `limit` items.
local function sweep(named, limit)
    local function some(what, work, ...)
        if 0 < limit then
            local args = {...}
            args[#args + 1] = limit
            local n = work(unpack(args))
            swept[what], limit = swept[what] + n, limit - n
        end
    end
    for _, q in ipairs(named) do
        some('expired', expire, q)
        for state = DONE, DEAD do some('removed', retire, q, state) end
        some('forgotten', forget_ids, q)
    end
    some('forgotten', forget_windows)
    some('forgotten', forget_calls)
    swept.more = limit == 0
end
