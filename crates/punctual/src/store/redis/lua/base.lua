-- What every script begins with: the keys, the time, counters, queues and rings. Read → decide → write.
--
-- KEYS, all of one shard, hence of one slot (an id stands for 16 bytes, q for a queue's number of 3 bytes; whole numbers
-- are big-endian, so that members sort as they should):
--   1 j  HASH  id → record                        what was asked for; see head() in jobs.lua
--   2 x  HASH  id → past                          what runs, moves and the end left behind; only where there is something
--   3 t  ZSET  q level run_at6 id past1           waiting jobs in the order in which they run (S6)
--   4 o  ZSET  q expires6 id                      waiting jobs that may expire
--   5 r  HASH  id → run                           running jobs: their leases; see run_of() in jobs.lua
--   6 l  ZSET  q until6 id                        their leases by time
--   7 e  ZSET  q state1 ended6 id bytes4          ended jobs as far as they are kept
--   8 u  HASH  digest16 → id until6               unique keys that are held; until: of a window
--   9 v  ZSET  until6 digest16                    windows by their end
--  10 k  ZSET  q ended6 id                        remembered ids by the end of their jobs
--  11 m  HASH  q id → ended6                      the same, by id
--  12 p  HASH  instance8 verb1 → number8 ms6 answer   the last call of each instance (S3)
--  13 a  ZSET  instance8 verb1 @ ms               the same, by a time not after their last call
--  14 s  HASH  'turn' → seen7 grace7 fence7 wide7 see read_turn()
--  15 q  HASH  name → q
--  16 i  HASH  q → settings, q 'w' → ms7          see queue()
--  17 n  ZSET  name                               queues by name
--  18 c  HASH  q what1 → number                   counters: 'b' bytes of live jobs, 'r' waiting jobs in a later attempt,
--                                                 a state's number: bytes of jobs kept in it
--  19 …  ZSET  'r' @ ms                           doorbells of the queues named in the call, in their order
-- ARGV[1]: now in Unix ms, or '' for the server's clock (S14).
-- In t, o, l, e, v, k and n all scores are 0: membership in t, r and e IS the state, order is that of the bytes.
--
-- What is seldom needed is made when it is (jobs(), upkeep()): to set up all of it would cost each call 5 µs.
local J, X, T, O, R, L, E, U, V, K, M, P, A, S, Q, I, N, C = unpack(KEYS, 1, 18)
local BELLS = 19 -- where the doorbells begin
local call, pack, unp = redis.call, struct.pack, struct.unpack
local sub, char, byte, concat, min, max = string.sub, string.char, string.byte, table.concat, math.min, math.max
local WAITING, DONE, CANCELLED, DEAD, RUNNING = 0, 1, 2, 3, 4
local LEVELS = 3
local END = 253402300799999 -- the last instant
local NEVER = 2 ^ 52 -- what hints say of what is not to come
local HEARTBEAT, JUMP = 5000, 20000
local CALL_MEMORY, BYTES_MAX, POISON_LIMIT = 3600000, 1048576, 3

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

-- Bounds of the members of a sorted set that start with `prefix`, as ZRANGEBYLEX takes them. Where it ends in 255 the carry
-- goes into the byte before.
local function within(prefix)
    local last = prefix
    while byte(last, -1) == 255 do last = sub(last, 1, -2) end
    return '[' .. prefix, '(' .. sub(last, 1, -2) .. char(byte(last, -1) + 1)
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
-- of each state (age in ms, jobs, bytes), the name as a chunk; then the same as JSON, which only callers read. Beside them
-- `due`: when there will be upkeep for it, at the earliest.
local function queue(q)
    local row = queues[q]
    if row then return row end
    local rows = call('HMGET', I, q, q .. 'w')
    local stored = rows[1]
    local flags, version, lease, jobs, bytes, n1, n2, n3, c1, c2, c3, d1, d2, d3, at = unp(SETTINGS, stored)
    row = {
        stored = stored, named_at = at, paused = has(flags, 1), lifo = has(flags, 2), version = version, lease = lease,
        max_jobs = 0 < jobs and jobs - 1, max_bytes = 0 < bytes and bytes - 1,
        keep = {{n1, n2, n3}, {c1, c2, c3}, {d1, d2, d3}},
        due = rows[2] and unp('>I7', rows[2]) or 0,
    }
    queues[q] = row
    return row
end
local function keeps_nothing(keep) return keep[1] == 0 or keep[2] == 0 or keep[3] == 0 end
-- The first byte behind a chunk: its length, in one byte or in 255 and four, then its bytes.
local function behind_chunk(rec, at)
    local length = byte(rec, at)
    if length < 255 then return at + 1 + length end
    return at + 5 + unp('>I4', rec, at + 1)
end
-- The name of a queue, as a chunk.
local function name_of(q)
    local row = queue(q)
    return sub(row.stored, row.named_at, behind_chunk(row.stored, row.named_at) - 1)
end
-- Makes a queue with these settings.
local function new_queue(name, row)
    local q = pack('>I3', call('HLEN', Q) + 1)
    call('HSET', Q, name, q)
    call('ZADD', N, 0, name)
    call('HSET', I, q, row)
    return q
end

-- Upkeep of a queue will be due at `ms`, if not before. What is due is found by looking; this only saves looking in vain.
local function hint(q, ms)
    local row = queue(q)
    if ms < row.due then row.due, row.hinted = ms, true end
end
local function put_hints()
    for q, row in pairs(queues) do
        if row.hinted then call('HSET', I, q .. 'w', pack('>I7', row.due)) end
    end
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
            left[#left + 1] = name_of(q) .. at6(ms <= now and 0 or ms)
        end
    end
    return concat(left)
end

-- ── the shard ──

-- When a reserve, take, extend or settle was seen last (one more than its ms; 0: never); until when nothing is taken back
-- after a jump of the clock; the last fence; when upkeep that is no queue's will be due, at the earliest.
local seen, grace, fence, wide
local function read_turn()
    if seen then return end
    local row = call('HGET', S, 'turn')
    if row then seen, grace, fence, wide = unp('>I7I7I7I7', row) else seen, grace, fence, wide = 0, 0, 0, 0 end
end
local function put_turn() call('HSET', S, 'turn', pack('>I7I7I7I7', seen, grace, fence, wide)) end
-- Looks for a jump of the clock; put_turn() leaves the time of this call (S14).
local function turn()
    read_turn()
    if now + HEARTBEAT < grace then grace = 0 end
    if 0 < seen and seen - 1 + JUMP < now and 0 < call('HLEN', R) then grace = now + HEARTBEAT end
    seen = now + 1
end
-- Until when nothing is taken back, if so.
local function no_take_back()
    return now < grace and grace <= now + HEARTBEAT and grace
end
local function next_fence()
    fence = max(fence, now * 1000) + 1
    return fence
end

-- Leaves the last call of an instance; `last`: the one before. Its place in time follows only when it is looked at.
local function put_call(key, last, number, answer)
    call('HSET', P, key, pack('>I8I6', number, now) .. answer)
    if not last then
        call('ZADD', A, text(now), key)
        read_turn()
        if now + CALL_MEMORY < wide then
            wide = now + CALL_MEMORY
            put_turn()
        end
    end
end
