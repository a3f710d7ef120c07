-- What every script does first: it asks what time it is.
--
-- What a hot path does not need is made when it is needed, by rules() and pending(): to set up all closures cost each call more
-- than all its commands, most of it for the locals that they capture. So few are made here, and what they share is one table.

-- The shard as this call sees it. queues: q → settings; bytes: of the records that load() in rules.lua read.
local shard = {queues = {}, bells = {}, into = 0, bytes = 0}
local now = tonumber(ARGV[1])
if not now then
    local t = call('TIME')
    now, shard.into = t[1] * 1000 + math.floor(t[2] / 1000), t[2] % 1000
end
shard.now = now

-- The settings of a queue: flags (1 paused, 2 lifo, 4 capped, 8, 16, 32 keeps no done, cancelled, dead jobs, 64 limited in what
-- runs or starts, 128 groups are, or have weights), version, lease (0: the default), then what limits_of() reads, the name as a chunk, and the
-- same as JSON, which only callers read. `due`: when there will be upkeep for it, at the earliest; what is due is found by
-- looking, this only saves looking in vain. `watch`: the time at which two processes wake, for a job or a lease; `spare`: until then a
-- second one was told that there is work; `closed`: until when a run closed its gate; `arrival`, `part`: when all that started
-- would have, had it started evenly, in ms and parts of one, as many as its rate has starts in a period; `started`: what this
-- call reserved and has not written yet. Of a queue that ever had groups (S16): the tag of whom it served last (`time`), that
-- of the jobs without a group (`own`; 0: none was due), and when it let groups in last, one more than its ms (`let`).
local function queue(q)
    local row = shard.queues[q]
    if row then return row end
    local rows = call('HMGET', SETTINGS, q, q .. 'w')
    local stored = rows[1]
    -- What can't be read is paused and gives up nothing, instead of going by defaults: its version is nobody's.
    if not stored or #stored < 133 then
        stored = pack('>BI4I4', 1, 2 ^ 32 - 1, JUMP - HEARTBEAT) .. string.rep('\0', 14) .. string.rep(pack('>I7', NEVER), 9)
            .. string.rep('\0', 22) .. '\1' .. string.rep('\0', 22) .. '\1?'
    end
    local flags, version, lease = unp('>BI4I4', stored)
    if lease == 0 then lease = JUMP - HEARTBEAT end
    local due, watch, spare, closed, arrival, part, time, own, let = 0, 0, 0, 0, 0, 0, 0, 0, 0
    local length = rows[2] and #rows[2]
    if length == 21 then
        due, watch, spare = unp('>I7I7I7', rows[2])
    elseif length == 39 then
        due, watch, spare, closed, arrival, part = unp('>I7I7I7I7I7I4', rows[2])
    elseif length == 60 then
        due, watch, spare, closed, arrival, part, time, own, let = unp('>I7I7I7I7I7I4I7I7I7', rows[2])
    end
    row = {
        stored = stored, flags = flags, version = version, lease = lease, due = due, watch = watch, spare = spare,
        closed = closed, arrival = arrival, part = part, time = time, own = own, let = let, started = 0,
        paused = flags % 2 == 1, lifo = flags % 4 >= 2,
    }
    shard.queues[q] = row
    return row
end

-- The shard's turn: when a reserve, take, extend or settle was seen last (one more than its ms; 0: never); until when nothing
-- is taken back after a jump of the clock; the last fence; when upkeep that is no queue's will be due, at the earliest; the
-- epoch that the shard was told of last; and which format its keys and rows have.
-- `pause`: until when nothing is taken back now, or false.
local function read_turn()
    local row = call('HGET', STATE, 'turn')
    if row and 34 <= #row then
        shard.seen, shard.grace, shard.fence, shard.wide, shard.epoch, shard.format = unp('>I7I7I7I7I4I2', row)
    else
        shard.seen, shard.grace, shard.fence, shard.wide, shard.epoch, shard.is_new = 0, 0, 0, 0, 0, true
        -- Before there was a number, none was left; whatever first writes into a new shard leaves it.
        shard.format = (row or 0 < call('HLEN', QUEUES)) and 0 or FORMAT
    end
    shard.pause = now < shard.grace and shard.grace <= now + HEARTBEAT and shard.grace
end
local function put_turn()
    call('HSET', STATE, 'turn', pack('>I7I7I7I7I4I2', shard.seen, shard.grace, shard.fence, shard.wide, shard.epoch, FORMAT))
end
shard.put_turn = put_turn
read_turn()
-- What others made, in a later format or before there was a number, is theirs: nothing of it is read, or changed.
if shard.format ~= FORMAT then return redis.error_reply('FORMAT ' .. shard.format) end
-- Looks for a jump of the clock; put_turn() leaves the time of this call (S14).
local function turn()
    if now + HEARTBEAT < shard.grace then shard.grace = 0 end
    -- A jump has one pause: after a call in it, a silence is no second jump.
    local had_its_pause = shard.seen - 1 < shard.grace
    if 0 < shard.seen and shard.seen - 1 + JUMP < now and not had_its_pause and 0 < call('HLEN', RUNS) then
        shard.grace = now + HEARTBEAT
    end
    shard.seen = now + 1
    shard.pause = now < shard.grace and shard.grace <= now + HEARTBEAT and shard.grace
end

-- What is needed less often, and what is left to be written: made when something is.
local made, left, pending
local function rules()
    made = made or make_rules(shard, queue, pending())
    return made
end
function pending()
    left = left or make_pending(shard, queue, rules, now)
    return left
end
local function put() return left and left.put() or '' end

-- A server that is full lets a script go on whose first write frees, be it nothing: what drains must drain (S17).
local function drains() call('ZREM', LEASES, '') end

-- Leaves the last call of an instance; `last`: the one before. Its place in time follows when it is looked at, or when the
-- clock went back: so it is never behind that of the call.
local function put_call(key, last, number, answer)
    call('HSET', CALLS, key, pack('>I8I6', number, now) .. answer)
    if not last or now < unp('>I6', last, 9) then
        call('ZADD', CALLS_BY_TIME, now, key)
        -- The one member that is too long for a short sorted set, which would be searched from end to end each time.
        call('ZADD', TIMELINE, '0', LAST)
        call('ZADD', LEASES, '0', LAST)
        rules().hint_wide(now + CALL_MEMORY)
    end
end
