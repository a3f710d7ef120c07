-- Queues: their limits and names as they are stored, and which of them hold nothing.

-- Returns how long jobs of one state are kept. `is_dead`: which default applies if nothing was chosen.
local function kept(age, count, bytes, is_dead)
    if age ~= $OPEN then return {age, count, bytes} end
    local shards = count
    if is_dead then return {$KEEP_LONG_AGE, math.ceil($KEEP_LONG_COUNT / shards), math.ceil($KEEP_LONG_BYTES / shards)} end
    return {$KEEP_SHORT_AGE, math.ceil($KEEP_SHORT_COUNT / shards), math.ceil($KEEP_SHORT_BYTES / shards)}
end
-- Reads the rest of a queue's settings. They come after flags, version and lease:
--   caps (0: none, else 1 more)
--   bounds of what is kept of each state: age in ms, jobs, bytes; or OPEN, and how many shards share the default
--   how many jobs can run (0: any number, else 1 more)
--   a rate (0: none): starts in a period, period in ms, starts at once
--   the weight of each group, then its limits in the same form
local function limits_of(q)
    local row = queue(q)
    if not row.keep then
        local jobs, bytes, n1, n2, n3, c1, c2, c3, d1, d2, d3, at = unp('>I7I7I7I7I7I7I7I7I7I7I7', row.stored, 10)
        row.max_jobs, row.max_bytes = 0 < jobs and jobs - 1, 0 < bytes and bytes - 1
        row.keep = {kept(n1, n2, n3, false), kept(c1, c2, c3, false), kept(d1, d2, d3, true)}
        row.concurrency, row.rate, row.period, row.burst, row.group, row.named_at = unp('>I7I4I7I4c23', row.stored, at)
    end
    return row
end

local function keeps_nothing(q, state) return has(queue(q).flags, $KEEPS_NO_DONE * 2 ^ (state - $DONE)) end
-- Returns a counter of a queue. A server that lost half a transaction may have a negative one, until an audit counts
-- again.
local function counter(key) return max(tonumber(call('HGET', $COUNTERS, key) or 0) or 0, 0) end
-- Returns the name of a queue, as a chunk.
local function name_of(q)
    local row = limits_of(q)
    return sub(row.stored, row.named_at, behind_chunk(row.stored, row.named_at) - 1)
end
-- Stores the settings of a queue: what scripts read, up to the name, and what only callers read.
local NAMED_AT = 132
local function put_settings(q, row)
    local at = behind_chunk(row, NAMED_AT)
    call('HSET', $SETTINGS, q, sub(row, 1, at - 1), q .. 'j', sub(row, at))
end
-- Stores settings under the name of a queue, whatever name they have.
local function put_settings_as(q, name, row)
    if shard.format < $FORMAT then shard.put_shard() end
    put_settings(q, sub(row, 1, NAMED_AT - 1) .. as_chunk(name) .. sub(row, behind_chunk(row, NAMED_AT)))
end
-- Returns the settings of a queue as callers read them. Before format 4 they were one row.
local function settings_of(q)
    local row = queue(q)
    return row.is_torn and row.stored or row.stored .. (call('HGET', $SETTINGS, q .. 'j') or '')
end
-- The names and settings of queues stay for ever. A queue that holds nothing is at rest. Calls that go through all
-- queues to count or to sweep skip it, until it gets a job or other settings.
local function holds_something(q)
    local from, to = within(q)
    for _, key in ipairs({$TIMELINE, $LEASES, $ENDED_JOBS, $REMEMBERED_BY_END, $GROUPS_BY_PLACE}) do
        if call('ZRANGEBYLEX', key, from, to, 'LIMIT', 0, 1)[1] then return true end
    end
    return false
end
-- Returns the number that the settings of a queue have, if the number of its name can not be read: reads the settings of all queues.
local function numbered(name)
    local cursor = '0'
    repeat
        local some = call('HSCAN', $SETTINGS, cursor, 'COUNT', 100)
        cursor = some[1]
        for i = 1, #some[2], 2 do
            if #some[2][i] == 3 and name_of(some[2][i]) == as_chunk(name) then return some[2][i] end
        end
    until cursor == '0'
end
local function rest(q, name)
    local row = queue(q)
    call('ZADD', $NAMES, 0, '\0' .. name)
    call('ZREM', $NAMES, name)
    row.due, row.hinted = $AT_REST, true
end
local function wake(q, name)
    local row = queue(q)
    if row.due ~= $AT_REST then return end
    call('ZADD', $NAMES, 0, name)
    call('ZREM', $NAMES, '\0' .. name)
    row.due, row.hinted = 0, true
end
-- Returns the number of a queue whose number can not be read, if its settings tell, and restores it.
local function found_again(name)
    local q = call('HEXISTS', $QUEUES, name) == 1 and numbered(name)
    if not q then return end
    call('HSET', $QUEUES, name, q)
    call('ZADD', $NAMES, 0, name)
    call('ZREM', $NAMES, '\0' .. name)
    local row = queue(q)
    row.due, row.hinted = 0, true
    return q
end
-- Makes a queue with these settings.
local function new_queue(name, row)
    if shard.is_new or shard.format < $FORMAT then shard.put_shard() end
    local q = found_again(name)
    if q then return q end
    -- A number is used once, also if the names of others are gone.
    local n = call('HLEN', $QUEUES)
    repeat
        n = n + 1
        q = pack('>I3', n)
    until call('HEXISTS', $SETTINGS, q) == 0 and not holds_something(q)
    call('HSET', $QUEUES, name, q)
    call('ZADD', $NAMES, 0, name)
    put_settings(q, row)
    return q
end

-- Notes that upkeep which belongs to no queue is due at `ms`, unless it is due earlier.
local function hint_wide(ms)
    if ms < shard.wide then
        shard.wide = ms
        shard.put_shard()
    end
end

-- Returns the job of a record and a history.
local function of(id, rec, x)
    local job = {id = id, rec = rec, state = $WAITING}
    head(job, rec)
    history(job, x)
    return job
end
-- Returns a job with its place, or nil. Also returns nil for one that cannot be read, which only an audit and pick()
-- handle.
local function load(id)
    local rec = call('HGET', $RECORDS, id)
    if not rec then return nil end
    local x, row = call('HGET', $HISTORIES, id), call('HGET', $RUNS, id)
    shard.bytes = shard.bytes + #rec + (x and #x or 0)
    local is_sound, job = pcall(function()
        local job = of(id, rec, x)
        if row then job.state, job.row, job.run = $RUNNING, row, run_of(row) end
        return job
    end)
    return is_sound and job or nil
end
-- Returns whether reads hide a job: it has ended, and is past the age that its queue keeps it for (S17).
local function is_hidden(job)
    return job.ended and job.ended + limits_of(job.q).keep[job.state][1] <= now
end

rules.limits_of, rules.counter, rules.name_of, rules.put_settings, rules.put_settings_as, rules.settings_of = limits_of, counter, name_of, put_settings, put_settings_as, settings_of
rules.found_again, rules.new_queue, rules.wake, rules.hint_wide, rules.of, rules.load, rules.is_hidden = found_again, new_queue, wake, hint_wide, of, load, is_hidden
