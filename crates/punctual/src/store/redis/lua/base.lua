-- The beginning of the general path of each script of jobs: reads the time, and the state of the shard.
--
-- Code that a hot path does not need is made only when it is needed, by rules() and pending(). Making all closures in
-- each call cost more than all its commands. The captured locals were most of that cost. So few closures are made here,
-- and they share one table.

-- The shard as this call sees it. `queues`: q → settings; `bytes`: read from records, and a sixteenth of
-- those of the long payloads that were removed.
local shard = {queues = {}, notifications = {}, into = 0, bytes = 0}
local now = tonumber(ARGV[1])
if not now then
    local t = call('TIME')
    now, shard.into = t[1] * 1000 + math.floor(t[2] / 1000), t[2] % 1000
end
shard.now = now

-- Returns the number of a queue, if it has one.
local function number_of(name)
    local q = call('HGET', $QUEUES, name)
    return q and #q == 3 and q
end
-- Returns the settings of a queue, read once per call:
--   flags: 1 paused, 2 lifo, 4 capped; 8, 16, 32 keeps no done, cancelled, dead jobs; 64 has a concurrency limit or a
--     rate; 128 its groups have limits or weights
--   version; lease (0: the default); then the fields that limits_of() reads, and the name as a chunk
-- and the state of the queue:
--   due: when there is upkeep for it, at the earliest. Upkeep finds the due items by reading; this only avoids reading
--     in vain.
--   watch: the time at which two processes wake, for a job or a lease
--   spare: until then, a second process is already notified of work
--   closed: until when the queue is paused by a run
--   tat, part: the theoretical arrival time of all jobs that started, in ms and parts of one; a ms has as many
--     parts as the rate has starts in a period
--   started: how many jobs this call reserved and has not written yet
--   time, ungrouped, let: only if the queue ever had groups (S16). time: the tag of the group that was served last.
--     ungrouped: the tag of the ungrouped jobs (0: none was due). let: when groups were last activated, one more than
--     its ms; later if a job that came since keeps a group active, or a group was found closed. Active groups have jobs
--     that were due by then, beyond the first $REGROUP_MAX after a step of the clock. If the clock is behind it, all
--     places are in doubt.
local function queue(q)
    local row = shard.queues[q]
    if row then return row end
    local rows = call('HMGET', $SETTINGS, q, q .. 'w')
    local stored = rows[1]
    -- A queue with settings that cannot be read is paused and removes nothing; it does not use defaults. Its version is
    -- that of no caller.
    local is_torn = not stored or #stored < 133
    if is_torn then
        stored = pack('>BI4I4', 1, 2 ^ 32 - 1, $LEASE_DEFAULT) .. string.rep('\0', 14) .. string.rep(pack('>I7', $NEVER), 9)
            .. string.rep('\0', 22) .. '\1' .. string.rep('\0', 22) .. '\1?'
    end
    local flags, version, lease = unp('>BI4I4', stored)
    if lease == 0 then lease = $LEASE_DEFAULT end
    local due, watch, spare, closed, tat, part, time, ungrouped, let = 0, 0, 0, 0, 0, 0, 0, 0, 0
    local length = rows[2] and #rows[2]
    if length == 21 then
        due, watch, spare = unp('>I7I7I7', rows[2])
    elseif length == 39 then
        due, watch, spare, closed, tat, part = unp('>I7I7I7I7I7I4', rows[2])
    elseif length == 60 then
        due, watch, spare, closed, tat, part, time, ungrouped, let = unp('>I7I7I7I7I7I4I7I7I7', rows[2])
    elseif length then
        let = 1 -- something else damaged it: there may be groups
    end
    row = {
        stored = stored, flags = flags, version = version, lease = lease, due = due, watch = watch, spare = spare,
        closed = closed, tat = tat, part = part, time = time, ungrouped = ungrouped, let = let, started = 0,
        paused = flags % 2 == 1, lifo = flags % 4 >= 2, is_torn = is_torn,
    }
    shard.queues[q] = row
    return row
end

-- Reads the row of the shard:
--   seen: the last mark: when a reserve, take, extend, settle, act or sweep was last seen (one more than its ms; 0: never)
--   grace: until when row 'doubt' is in force; earlier versions kept the end of a pause here
--   fence: the last fence
--   wide: when upkeep that belongs to no queue is due, at the earliest
--   epoch: the last epoch that the shard was informed of
--   format: the format of its keys and rows
--   silences: what follows: see silence.lua
local function read_shard()
    local row = call('HGET', $STATE, 'turn')
    if row and 34 <= #row then
        shard.seen, shard.grace, shard.fence, shard.wide, shard.epoch, shard.format = unp('>I7I7I7I7I4I2', row)
        shard.silences = #row % 11 == 8 and sub(row, 35) or ''
    else
        shard.seen, shard.grace, shard.fence, shard.wide, shard.epoch, shard.is_new = 0, 0, 0, 0, 0, true
        shard.silences = ''
        -- Before there were format numbers, none was stored. The first write into a new shard stores the number.
        shard.format = (row or 0 < call('HLEN', $QUEUES)) and 0 or $FORMAT
    end
end
local function put_shard()
    local row = pack('>I7I7I7I7I4I2', shard.seen, shard.grace, shard.fence, shard.wide, shard.epoch, $FORMAT)
    call('HSET', $STATE, 'turn', row .. shard.silences)
    shard.format = $FORMAT
end
shard.put_shard = put_shard
read_shard()
-- A store with a later format, or with one that this version cannot read, is neither read nor changed. Each put_shard() raises
-- an earlier format, and so does each write that it does not have.
if shard.format == 0 then
    -- Formats without a number had no settings as JSON: then the row of the shard is gone or damaged, see sharded/restore.lua.
    for i, q in ipairs(call('HSCAN', $QUEUES, '0', 'COUNT', $READ_AT_ONCE)[2]) do
        if i % 2 == 0 and call('HEXISTS', $SETTINGS, q .. 'j') == 1 then return redis.error_reply('STATELESS shard') end
    end
end
if $FORMAT < shard.format or shard.format < $FORMAT_MIN then return redis.error_reply('FORMAT ' .. shard.format) end
-- Returns the doubt, as core/steady.rs has it: when the mark after the gap came, and steady time then; nothing if the clock is believed.
-- Cost: one command while it is doubted.
local function doubt()
    local row = now < shard.grace and call('HGET', $STATE, 'doubt')
    if row and #row == 14 then return unp('>I7I7', row) end
end
-- Returns the time by which upkeep removes (S17), at an instant.
local function steady(at)
    local since, from = doubt()
    if not since or since + $TRUSTED_AFTER <= at then return at end
    return min(at, from + max(at - since, 0))
end
function shard.steady() return steady(now) end
-- Leaves a mark, and notes the silence that it ends. put_shard() stores both (S14). After a gap, the clock is not believed for a while.
local function mark()
    local seen = shard.seen - 1
    if 0 <= seen and (seen + $STEP_MIN < now or now + $STEP_BACK_MIN < seen) then
        local from = steady(seen)
        shard.grace = 0
        if from + $STEP_MIN < now then
            shard.grace = min(now + $TRUSTED_AFTER, $INSTANT_MAX_MS)
            call('HSET', $STATE, 'doubt', pack('>I7I7', now, from))
        end
    end
    shard.silences = noted(shard.silences, shard.seen - 1, now)
    shard.seen = now + 1
end
-- Returns when a lease with this end and length can be reclaimed (S9).
function shard.over_at(till, lasts) return over_at(shard.silences, till, lasts) end
-- Returns whether leases can end later than their length from now, because the clock went back.
function shard.can_end_late() return shard.silences ~= '' and now < unp('>I7', shard.silences) end
-- The rules and the pending writes; each is made at its first use.
local made, left, pending
local function rules()
    made = made or make_rules(shard, queue, pending())
    return made
end
function pending()
    left = left or make_pending(shard, queue, rules, now)
    return left
end
-- Returns when a call is needed that leaves a mark for a lease of this queue, or reclaims it; NEVER if there is none. `by_sweep`:
-- when a sweep is, for those that have expired.
local function watch_of(q, by_sweep)
    local to, after = '(' .. q .. '\255', 0
    if by_sweep then to, after = '(' .. q .. pack('>I6', now + 1), $ORPHANED_AFTER end
    local members, ids = call('ZRANGEBYLEX', $LEASES, '[' .. q, to, 'LIMIT', 0, $WATCHED_MAX), {}
    for i, member in ipairs(members) do
        if #member ~= 25 then
            rules().set_aside($LEASES, member)
            return now
        end
        ids[i] = sub(member, 10)
    end
    if #ids == 0 then return $NEVER end
    local rows, at = call('HMGET', $RUNS, unpack(ids)), $NEVER
    for i, member in ipairs(members) do
        local till, lasts = unp('>I6', member, 4), rows[i] and 32 <= #rows[i] and unp('>I4', rows[i], 29) or 0
        at = min(at, over_at(shard.silences, till, lasts) + after)
        -- Without a run it is dropped at its end.
        if 0 < lasts then at = min(at, now + math.floor(2 * lasts / 5)) end
    end
    return at
end
shard.watch_of = watch_of

local function put() return left and left.put() or '' end

-- A full server lets a script go on if its first write is a command that frees memory, even if it frees nothing. Calls
-- that remove jobs must work on a full server (S17).
local function drains() call('ZREM', $LEASES, '') end

-- Adds to a counter. One that is no number counts anew: a call that has begun to write must not fail.
local function add(counter, by)
    local sum = redis.pcall('HINCRBY', $COUNTERS, counter, by)
    if type(sum) == 'number' then return sum end
    call('HSET', $COUNTERS, counter, by)
    return tonumber(by)
end
shard.add = add

-- Returns the last call of an instance, if there is one. One that something else damaged counts as none: it is too short, or far ahead of the
-- number of this call.
local function last_call(key, number)
    local row = call('HGET', $CALLS, key)
    return row and 14 <= #row and unp('>I8', row) - number < $CALLS_AHEAD_MAX and row
end
-- Stores the last call of an instance; `last`: the one before. The entry by time is updated when upkeep looks at it, or
-- here if the clock went back. So its time is never after that of the call.
local function put_call(key, last, number, answer)
    call('HSET', $CALLS, key, pack('>I8I6', number, now) .. answer)
    if not last or now < unp('>I6', last, 9) then
        call('ZADD', $CALLS_BY_TIME, now, key)
        -- This one member is too long for a short sorted set, which would be searched from end to end each time.
        call('ZADD', $TIMELINE, '0', LAST)
        call('ZADD', $LEASES, '0', LAST)
        rules().hint_wide(now + $CALL_MEMORY)
    end
end
