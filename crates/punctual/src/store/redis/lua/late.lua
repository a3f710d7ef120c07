-- What scripts need less often: made by late(), which this is the body of, in a function within one that begins with another
-- copy of keys.lua. So it captures nothing of the script but `shard`, `queue` and `pending`, and what it defines takes the keys
-- along without looking for them among all that is captured.
local now = shard.now
local tally, ring, tell, hint = pending.tally, pending.ring, pending.tell, pending.hint
local UNTIL_START, WINDOW = 1, 2
local FAILURES_MAX, ID_MEMORY, ID_MEMORY_MAX = $FAILURES_MAX, $ID_MEMORY, $ID_MEMORY_MAX
local SNOOZES_MAX, SNOOZE_MIN, TAKE_BACK_MAX = $SNOOZES_MAX, $SNOOZE_MIN, $TAKE_BACK_MAX
local FORGET_ROUNDS_MAX, FORGET_LOOK = 4, 100
local GATE_MAX, HELD_FOR = $GATE_MAX, $HELD_FOR
local STRIDE, REGROUP_MAX = $STRIDE, $REGROUP_MAX
local NONE = pack('>I6', 0)

local function text(n) return string.format('%.0f', n) end
local function has(flags, bit) return bit <= flags % (2 * bit) end
local function at6(ms) return pack('>I6', ms) end
-- Bounds of the members of a sorted set that start with `prefix`, as ZRANGEBYLEX takes them.
local function within(prefix) return '[' .. prefix, '(' .. prefix .. BEHIND end

-- Bytes as a chunk.
local function as_chunk(bytes)
    return (#bytes < 255 and char(#bytes) or '\255' .. pack('>I4', #bytes)) .. bytes
end

shard.swept = {expired = 0, removed = 0, forgotten = 0}

-- ── queues ──

-- The first byte behind a chunk: its length, in one byte or in 255 and four, then its bytes.
local function behind_chunk(rec, at)
    local length = byte(rec, at)
    if length < 255 then return at + 1 + length end
    return at + 5 + unp('>I4', rec, at + 1)
end
-- What a chunk holds, nil where that is nothing, and the first byte behind it.
local function chunk(rec, at)
    local behind = behind_chunk(rec, at)
    local from = at + (byte(rec, at) < 255 and 1 or 5)
    return from < behind and sub(rec, from, behind - 1) or nil, behind
end
-- How long jobs of one state are kept; `is_dead`: by which default, where nobody chose.
local function kept(age, count, bytes, is_dead)
    if age ~= OPEN then return {age, count, bytes} end
    local shards = count
    if is_dead then return {$KEEP_LONG_AGE, math.ceil($KEEP_LONG_COUNT / shards), math.ceil($KEEP_LONG_BYTES / shards)} end
    return {$KEEP_SHORT_AGE, math.ceil($KEEP_SHORT_COUNT / shards), math.ceil($KEEP_SHORT_BYTES / shards)}
end
-- Behind flags, version and lease: caps (0: none, else 1 more), bounds of what is kept of each state (age in ms, jobs, bytes; or
-- OPEN, and among how many shards the default is shared),
-- how many may run (0: any number, else 1 more), a rate (0: none): starts in a period, period in ms, starts at once; and the
-- same of each group, behind its weight.
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
-- ── limits of queues (S15); the arithmetic is that of rate.rs, in whole numbers below 2^53 ──

-- How far ahead of now the arrival of a queue or a group is, in parts. One further ahead than any that its rate leaves was
-- left by another rate, or by a clock that went back since: it is void.
local function ahead(row)
    local parts = (row.arrival - now) * row.rate + min(row.part, row.rate - 1)
    return 0 < parts and parts <= row.burst * row.period and parts or 0
end
-- How many jobs a rate and a closed gate let start now, and when the next one may.
local function room_in_time(of)
    local most, opens = NEVER, now
    if now < of.closed and of.closed <= now + GATE_MAX then most, opens = 0, of.closed end
    if 0 < of.rate then
        local left = of.burst * of.period - ahead(of)
        if left < of.period then
            opens = max(opens, now + math.ceil((of.period - left) / of.rate))
        end
        most = min(most, math.floor(left / of.period))
    end
    return most, opens
end
-- As in walk.lua; and until when the gate is closed by time alone.
local function room_of(q, takes)
    local row = limits_of(q)
    local most, opens = room_in_time(row)
    if 0 < row.concurrency then
        local from, to = within(q)
        local left = row.concurrency - 1 - call('ZLEXCOUNT', L, from, to) - row.started
        if left <= 0 then return 0, NEVER, opens end
        if not takes then most = min(most, left) end
    end
    return most, opens, opens
end
-- So many jobs start by a rate.
local function spend_rate(of, n)
    local parts = ahead(of) + n * of.period
    of.arrival, of.part = now + math.floor(parts / of.rate), parts % of.rate
end
-- So many jobs of a queue start.
local function spend(q, n, takes)
    local row = limits_of(q)
    if not takes then row.started = row.started + n end
    if row.rate == 0 then return end
    spend_rate(row, n)
    row.hinted = true
end
-- A run closes a gate.
local function close(of, till)
    local last = now + GATE_MAX
    till = min(till, last)
    of.closed = of.closed <= last and max(of.closed, till) or till
end
local function keeps_nothing(q, state) return has(queue(q).flags, KEEPS_NO_DONE * 2 ^ (state - DONE)) end
-- A counter of a queue. A server that lost half a transaction may have one below nothing, until an audit counts anew.
local function counter(key) return max(tonumber(call('HGET', C, key) or 0) or 0, 0) end
-- The name of a queue, as a chunk.
local function name_of(q)
    local row = limits_of(q)
    return sub(row.stored, row.named_at, behind_chunk(row.stored, row.named_at) - 1)
end
-- Makes a queue with these settings.
local function new_queue(name, row)
    if shard.is_new then shard.put_turn() end
    local q = pack('>I3', call('HLEN', Q) + 1)
    call('HSET', Q, name, q)
    call('ZADD', N, 0, name)
    call('HSET', I, q, row)
    return q
end

-- Names of queues stay for ever, and what is set of them. One that holds nothing is at rest: whoever goes through all queues to count
-- or to sweep passes it over, until it gets a job, or other settings.
local function holds_something(q)
    local from, to = within(q)
    for _, key in ipairs({T, L, E, K, H}) do
        if call('ZRANGEBYLEX', key, from, to, 'LIMIT', 0, 1)[1] then return true end
    end
    return false
end
local function rest(q, name)
    local row = queue(q)
    call('ZADD', N, 0, '\0' .. name)
    call('ZREM', N, name)
    row.due, row.hinted = AT_REST, true
end
local function wake(q, name)
    local row = queue(q)
    if row.due ~= AT_REST then return end
    call('ZADD', N, 0, name)
    call('ZREM', N, '\0' .. name)
    row.due, row.hinted = 0, true
end

-- Notes that upkeep which is no queue's will be due at `ms`, if not before.
local function hint_wide(ms)
    if ms < shard.wide then
        shard.wide = ms
        shard.put_turn()
    end
end

-- ── rows ──

-- The head of a record: flags (1 run_at is not created_at, 2 expires, 4 a lease of its own, 8 max_attempts was chosen,
-- 16 a unique key, 32 a concurrency key and how many of it may run, 64 a group), level + 16 × scope, q, bytes before the
-- payload, created_at, then what the flags say, then two chunks that are the client's own (what a replacement changes, and
-- what stays) and the payload.
local function head(job, rec)
    local flags, level, q, skip, created, at = unp('>BBc3I3I6', rec)
    job.q, job.level, job.scope, job.created = q, level % 16, math.floor(level / 16), created
    if has(flags, 1) then job.run_at, at = unp('>I6', rec, at) else job.run_at = created end
    if has(flags, 2) then job.expires, at = unp('>I6', rec, at) end
    if has(flags, 4) then job.lease, at = unp('>I4', rec, at) end
    if has(flags, 8) then job.max_attempts, at = unp('>I2', rec, at) else job.max_attempts = $MAX_ATTEMPTS_DEFAULT end
    if has(flags, 16) then job.digest, job.window, at = unp('>c16I7', rec, at) end
    if has(flags, 32) then job.key, job.most, at = unp('>c16I4', rec, at) end
    if has(flags, 64) then job.gid, at = unp('>c16', rec, at) end
    job.asked_at, job.payload_at, job.bytes = at, skip + 1, #rec - skip
    if job.bytes < 0 then error('a record ends before its payload') end
end

-- The kind of a record's job, which the first of the client's chunks has after the content type; '' where that can't be read.
local function kind_of(rec)
    local is_sound, kind = pcall(function()
        local job = {}
        head(job, rec)
        local asked = chunk(rec, job.asked_at)
        return chunk(asked, behind_chunk(asked, 1))
    end)
    return is_sound and kind and #kind < 255 and kind or ''
end

-- A past: flags, then what they say: 1 started once, 2 run_at and level are these, 4 expires no more, 8 counts,
-- 16 version, 32 ended: state and when, 64 reason, 128 chunks: result (its content type as a chunk, then its bytes; '' without
-- one), notes, which are the client's own, and a byte while somebody waits for the end; then failures.
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
    if 0 < #job.failures or job.result or job.notes or job.watched then
        put(128, as_chunk(job.result or '') .. as_chunk(job.notes or '') .. as_chunk(job.watched or ''))
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

-- A run: fence, q, until, flags (1 a cancel was asked for, 2 the job has a past, 4 its end frees a key, 8 it has a concurrency
-- key, 16 a group), bytes of the payload, started, how long an extension lasts, the digests of these, the worker: its length
-- in a byte, its name, zeros up to 64 bytes. (So no hash of runs is a short one, which would be searched from end to end each
-- time.)
local function run_of(row)
    local run, at = {}, nil
    run.fence, run.q, run.till, run.flags, run.bytes, run.started, run.lasts, at = unp('>I8c3I6BI4I6I4', row)
    run.past = has(run.flags, 2) and '\1' or '\0'
    if has(run.flags, 4) then run.digest, at = unp('>c16', row, at) end
    if has(run.flags, 8) then run.key, at = unp('>c16', row, at) end
    if has(run.flags, 16) then run.gid, at = unp('>c16', row, at) end
    run.tail = sub(row, at)
    run.worker = sub(run.tail, 2, 1 + byte(run.tail))
    return run
end
-- A run's crash may be the fault of others from now on (S9).
local function set_company(run)
    if not has(run.flags, 32) then run.flags = run.flags + 32 end
end
-- A run's job has a past from now on.
local function set_past(run)
    if not has(run.flags, 2) then run.flags = run.flags + 2 end
end
local function put_run(id, run)
    local row = pack('>I8', run.fence) .. run.q .. pack('>I6BI4I6I4', run.till, run.flags, run.bytes, run.started,
        run.lasts) .. (run.digest or '') .. (run.key or '') .. (run.gid or '') .. run.tail
    call('HSET', R, id, row)
    return row
end

-- A job of a record and a past.
local function of(id, rec, x)
    local job = {id = id, rec = rec, state = WAITING}
    head(job, rec)
    past(job, x)
    return job
end
-- A job with its place, or nil; also for one that can't be read, which only an audit and pick() look at any closer.
local function load(id)
    local rec = call('HGET', J, id)
    if not rec then return nil end
    local x, row = call('HGET', X, id), call('HGET', R, id)
    shard.bytes = shard.bytes + #rec + (x and #x or 0)
    local is_sound, job = pcall(function()
        local job = of(id, rec, x)
        if row then job.state, job.row, job.run = RUNNING, row, run_of(row) end
        return job
    end)
    return is_sound and job or nil
end
-- Whether reads hide a job: it ended, and is past the age that its queue keeps it for (S17).
local function is_hidden(job)
    return job.ended and job.ended + limits_of(job.q).keep[job.state][1] <= now
end

-- Tells who waits for the end of a job, if somebody does.
local function tell_end(job)
    if not job.watched then return end
    job.watched = nil
    tell('$end/' .. string.gsub(job.id, '.', function(c) return string.format('%02x', byte(c)) end))
end
-- Ends a job that can't be read and has left its place: nobody can run it, and people may want to see it. `had_ended`: its bytes
-- are not among those of live jobs; `live`: how many of them are, where its run says so.
local function bury(q, id, had_ended, live)
    -- How large it is its head may still say.
    local job, rec = {}, call('HGET', J, id)
    local bytes = rec and pcall(head, job, rec) and job.bytes or 0
    if job.key and not job.gid then call('ZREM', H, q .. 'k' .. job.key .. id) end
    -- Whether somebody waits for it nobody can tell.
    tell_end({id = id, watched = true})
    call('HSET', X, id, pack('>BBI6', 32 + 64, DEAD, now) .. pack('>I2', 7) .. 'corrupt')
    call('ZADD', E, '0', q .. pack('>BI6', DEAD, now) .. id .. pack('>I4', bytes))
    if not had_ended then tally(q, 'b', -(live or bytes)) end
    tally(q, char(DEAD), bytes)
    hint(q, 0)
end

-- ── concurrency keys (S15): a due job that is looked at while its key is full is parked; each event of the key gives the first
-- of its parked jobs a look, and if that may run, it is back in the timeline ──

-- Notes an event: a run that starts or ends, a waiting job that leaves or is parked. hand_over() must follow.
local function touch(q, key)
    local touched = shard.touched or {}
    touched[#touched + 1], shard.touched = q .. key, touched
end
-- How many jobs of a key or a group run.
local function run_of_key(of) return call('ZLEXCOUNT', G, within(of)) end
-- Whether as many jobs of a job's key run as may beside it.
local function is_full(job) return job.key and job.most <= run_of_key(job.q .. job.key) end
-- Notes an event of a group: a job of it comes, leaves or moves while it waits, or ends its run. hand_over() must follow.
local function touch_group(q, gid)
    local changed = shard.changed or {}
    changed[q .. gid], shard.changed = true, changed
end
-- Jobs of a concurrency key without a group, as long as they wait or run.
local function live_member(q, key, id) return q .. 'k' .. key .. id end
local function put_live(job)
    if job.key and not job.gid then call('ZADD', H, '0', live_member(job.q, job.key, job.id)) end
end
local function end_live(q, of, id)
    if of.key and not of.gid then call('ZREM', H, live_member(q, of.key, id)) end
end
-- A job that waits or runs here of a group, or else of a concurrency key; '' where only the group's rate or closed gate is left;
-- nil where nothing is. While one shard has something of it, no other one may start its jobs (S15).
local function first_live(q, key, gid)
    local function first(set, prefix)
        local from, to = within(prefix)
        return call('ZRANGEBYLEX', set, from, to, 'LIMIT', 0, 1)[1]
    end
    if not gid then
        local member = first(H, q .. 'k' .. key)
        return member and sub(member, 21)
    end
    -- A job that is parked has another one of its key beside it, which is not.
    local waiting, running = first(T, q .. char(GROUPED) .. gid), first(G, q .. gid)
    if waiting or running then return waiting and sub(waiting, 28, 43) or sub(running, 20) end
    local row = call('HGET', Y, q .. gid)
    if row and #row == 26 then
        local closed, arrival = unp('>I7I7', row, 9)
        if now <= max(closed, arrival) then return '' end
    end
end
-- The run of a job with a key or a group ends; `of`: these.
local function end_keyed(q, of, id)
    if of.key then
        call('ZREM', G, q .. of.key .. id)
        touch(q, of.key)
    end
    if of.gid then
        call('ZREM', G, q .. of.gid .. id)
        touch_group(q, of.gid)
    end
end
-- The same, of a run without a job, as far as its row can be read.
local function end_lost(q, id)
    local row = call('HGET', R, id)
    local is_sound, run = pcall(run_of, row or '')
    if is_sound then
        end_keyed(q, run, id)
        end_live(q, run, id)
    end
end
-- The place in time of a waiting job of a group.
local function timed(q, run_at, id) return q .. 'd' .. pack('>I7', run_at) .. id end
local function first_parked(prefix, lifo)
    if not lifo then
        local from, to = within(prefix)
        return call('ZRANGEBYLEX', T, from, to, 'LIMIT', 0, 1)[1]
    end
    for level = 0, LEVELS - 1 do
        local from, to = within(prefix .. char(level))
        local first = call('ZREVRANGEBYLEX', T, to, from, 'LIMIT', 0, 1)[1]
        if first then return first end
    end
end
-- Whether a job of the same key is parked that comes before the one of this member of the timeline.
local function is_behind(job, member)
    local lifo = queue(job.q).lifo
    local first = first_parked(job.q .. char(PARKED) .. job.key, lifo)
    if not first then return false end
    -- Level, run_at, id: byte by byte, since < goes by the server's locale.
    for i = 0, 22 do
        local ahead, own = byte(first, 21 + i), byte(member, #member - 23 + i)
        if ahead ~= own then return (ahead < own) == (i == 0 or not lifo) end
    end
    return false
end

-- ── groups (S15, S16): the rules are told in the model's fair.rs ──

-- What is remembered of a group: where it stands (place1 at7; '': nowhere), its gate as a queue has it; and what it may have.
-- Of each there is one table in a call, which put() writes.
local function group_of(q, gid)
    local groups = shard.groups or {}
    shard.groups = groups
    local group = groups[q .. gid]
    if group then return group end
    group = {q = q, gid = gid, place = '', at = 0, closed = 0, arrival = 0, part = 0}
    local row = call('HGET', Y, q .. gid)
    group.is_known = row ~= false
    -- What something else wrote over is as nothing: it must not stop a queue.
    if row and #row == 26 then
        group.place, group.at, group.closed, group.arrival, group.part = unp('>c1I7I7I7I4', row)
    end
    local limits = limits_of(q).group
    if has(queue(q).flags, GROUPS_LIMITED) then limits = call('HGET', I, q .. 'g' .. gid) or limits end
    group.weight, group.concurrency, group.rate, group.period, group.burst = unp('>BI7I4I7I4', limits)
    groups[q .. gid] = group
    return group
end
-- Writes what changed of the groups.
local function put_groups()
    for of, group in pairs(shard.groups or {}) do
        if group.place ~= '' then
            call('HSET', Y, of, pack('>c1I7I7I7I4', group.place, group.at, group.closed, group.arrival, group.part))
        elseif group.is_known then
            call('HDEL', Y, of)
        end
    end
    shard.groups = nil
end
shard.put_groups = put_groups
-- When a group may start a job: NEVER where one of those that run must end first.
local function group_opens(group)
    if 0 < group.concurrency and group.concurrency - 1 <= run_of_key(group.q .. group.gid) then return NEVER end
    local _, opens = room_in_time(group)
    return opens
end
local function is_open(group) return group_opens(group) <= now end
-- When the first waiting job of a group is due.
local function first_of_group(group)
    local prefix, first, level = group.q .. char(GROUPED) .. group.gid, NEVER, 0
    while level < LEVELS do
        local member = call('ZRANGEBYLEX', T, '[' .. prefix .. char(level), '(' .. prefix .. char(LEVELS), 'LIMIT', 0, 1)[1]
        if not member then break end
        local run_at
        level, run_at = unp('>BI6', member, 21)
        first, level = min(first, run_at), level + 1
    end
    return first
end
-- Puts a group somewhere else.
local function move(group, place, at)
    local function member() return group.q .. group.place .. pack('>I7', group.at) .. group.gid end
    if group.place ~= '' then call('ZREM', H, member()) end
    group.place, group.at = place, at
    if place ~= '' then call('ZADD', H, '0', member()) end
end
-- Puts a group where it belongs: r in the ring, by its tag; w waiting for when it may start its first job; b blocked by as
-- many runs as may be, under the settings of that version; g without a job, remembered for its gate until then; or nowhere.
local function regroup(group)
    local q = group.q
    local row = queue(q)
    if row.let == 0 then row.let, row.hinted = 1, true end
    local first, opens = first_of_group(group), group_opens(group)
    if first == NEVER then
        -- Through its last millisecond, should the clock go back in it.
        local last = max(group.closed, group.arrival)
        local is_kept = now <= last
        return move(group, is_kept and 'g' or '', is_kept and last + 1 or 0)
    end
    if opens == NEVER then return move(group, 'b', row.version) end
    local at = first
    if now < opens then
        -- By the clock: should it go back, it is looked at again.
        at, row.let, row.hinted = max(first, opens), max(row.let, now + 1), true
    end
    -- What was due when groups were let in last is so until they are again, should the clock go back.
    if group.place == 'r' and at <= max(now, row.let - 1) or group.place == 'w' and group.at == at then return end
    move(group, 'w', at)
    ring(q, at)
end
-- The tag of a group that comes.
local function come(row, weight) return row.time + math.floor(STRIDE / weight) - 1 end
-- Members of h in one place of a queue, up to some `at`.
local function groups_in(q, place, till, limit)
    return call('ZRANGEBYLEX', H, '[' .. q .. place, '(' .. q .. place .. pack('>I7', till + 1), 'LIMIT', 0, limit)
end
local function group_in(q, member) return group_of(q, sub(member, 12)) end
-- Lets groups into the ring whose first job is due and may start; looks again at some that are blocked since earlier settings,
-- and at some that need not be remembered any more.
local function let_in(q, most)
    local row = queue(q)
    local before = row.let
    row.let, row.hinted = now + 1, true
    if now + 1 < before then
        -- The clock went back: jobs of groups in the ring may not be due, and what closed others may be void.
        for place in string.gmatch('rw', '.') do
            for _, member in ipairs(groups_in(q, place, NEVER, REGROUP_MAX)) do regroup(group_in(q, member)) end
        end
    end
    for _, member in ipairs(groups_in(q, 'b', row.version - 1, GROUPS_EXTRA)) do regroup(group_in(q, member)) end
    for _, member in ipairs(groups_in(q, 'g', now, most)) do regroup(group_in(q, member)) end
    for _, member in ipairs(groups_in(q, 'w', now, most)) do
        local group = group_in(q, member)
        move(group, 'r', come(row, group.weight))
    end
end
-- Jobs without a group come as one, or anew when there are some again.
local function mind_rest(q, is_due)
    local row = queue(q)
    local own = is_due and (0 < row.own and row.own or come(row, 1)) or 0
    if own ~= row.own then row.own, row.hinted = own, true end
end
local function first_in_ring(q)
    local member = groups_in(q, 'r', NEVER, 1)[1]
    return member and group_in(q, member)
end
-- A group leaves the ring, though it has jobs that may start, until it is let in again.
local function leave_ring(group) move(group, 'w', first_of_group(group)) end
-- Counts a job that starts against its group, or against the jobs without one.
local function charge(group)
    local row = queue(group.q)
    row.time, row.hinted = group.at, true
    if 0 < group.rate then spend_rate(group, 1) end
    move(group, 'r', group.at + math.floor(STRIDE / group.weight))
end
local function charge_rest(q)
    local row = queue(q)
    row.time, row.own, row.hinted = row.own, row.own + STRIDE, true
end
-- When the first group of a queue may start a job.
local function first_group(q)
    if now + 1 < queue(q).let then
        -- The clock went back: where groups stand may not hold.
        local first = NEVER
        for place in string.gmatch('rw', '.') do
            for _, member in ipairs(groups_in(q, place, NEVER, REGROUP_MAX)) do
                local group = group_in(q, member)
                local due, opens = first_of_group(group), group_opens(group)
                first = min(first, now < opens and max(due, opens) or due)
            end
        end
        return first
    end
    local first = call('ZRANGEBYLEX', H, '[' .. q .. 'r', '(' .. q .. 'x', 'LIMIT', 0, 1)[1]
    local is_ready = first and sub(first, 4, 4) == 'r' or groups_in(q, 'b', queue(q).version - 1, 1)[1]
    return is_ready and now or first and unp('>I7', first, 5) or NEVER
end
-- The settings are others: what a group may have may be, too. More groups than these follow by and by.
local function look_at_groups(q)
    for place in string.gmatch('rwb', '.') do
        for _, member in ipairs(groups_in(q, place, NEVER, REGROUP_MAX)) do touch_group(q, sub(member, 12)) end
    end
end
-- Whether a waiting job is due, and held back.
local function is_blocked(job)
    if job.state ~= WAITING or now < job.run_at or call('HEXISTS', I, job.q) == 0 then return false end
    return is_full(job) or room_of(job.q) <= 0 or job.gid and not is_open(group_of(job.q, job.gid))
end

-- Gives each event of a key its look, and puts groups with events where they belong. Answers whether some job is back in the
-- timeline.
local function hand_over()
    local touched, any = shard.touched or {}, false
    shard.touched = nil
    for _, of in ipairs(touched) do
        local q = sub(of, 1, 3)
        local first = first_parked(q .. char(PARKED) .. sub(of, 4), queue(q).lifo)
        if first and (#first == 48 or #first == 64) and run_of_key(of) < unp('>I4', first, 45) then
            local run_at, gid = unp('>I6', first, 22), sub(first, 49)
            call('ZREM', T, first)
            call('ZADD', T, '0', q .. (gid ~= '' and char(GROUPED) .. gid or '') .. sub(first, 21, 44))
            if gid ~= '' then
                call('ZADD', H, '0', timed(q, run_at, sub(first, 28, 43)))
                touch_group(q, gid)
            end
            ring(q, run_at)
            any = true
        end
    end
    local changed = shard.changed or {}
    shard.changed = nil
    for of in pairs(changed) do regroup(group_of(sub(of, 1, 3), sub(of, 4))) end
    return any
end
shard.hand_over = hand_over

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
    if row and sub(row, 17) ~= NONE then call('ZREM', V, sub(row, 17) .. digest) end
    call('HSET', U, digest, id .. at6(till))
    if 0 < till then
        call('ZADD', V, 0, at6(till) .. digest)
        hint_wide(till)
    end
end
-- Until when a job holds its key, if that is settled by its enqueue; else 0.
local function window_end(job)
    return job.scope == WINDOW and min(job.created + job.window, END) or 0
end
local function free(digest, id)
    local row = call('HGET', U, digest)
    if row and sub(row, 1, 16) == id then
        call('HDEL', U, digest)
        if sub(row, 17) ~= NONE then call('ZREM', V, sub(row, 17) .. digest) end
    end
end
local function free_key(job)
    if job.digest then free(job.digest, job.id) end
end

-- ── places ──

local function waiting_member(job)
    local prefix = job.gid and job.q .. char(GROUPED) .. job.gid or job.q
    return prefix .. pack('>BI6', job.level, job.run_at) .. job.id .. job.past
end
local function put_waiting(job)
    call('ZADD', T, '0', waiting_member(job))
    if job.gid then
        call('ZADD', H, '0', timed(job.q, job.run_at, job.id))
        touch_group(job.q, job.gid)
    end
    if job.expires then
        call('ZADD', O, '0', job.q .. at6(job.expires) .. job.id)
        hint(job.q, job.expires)
    end
    if 1 < job.attempt then tally(job.q, 'r', 1) end
end
-- What a waiting job leaves besides its member.
local function unwait(job)
    if job.expires then call('ZREM', O, job.q .. at6(job.expires) .. job.id) end
    if 1 < job.attempt then tally(job.q, 'r', -1) end
end
-- The member of t of a job that waits for its turn.
local function parked_member(job)
    return job.q .. char(PARKED) .. job.key .. sub(waiting_member(job), -24) .. pack('>I4', job.most) .. (job.gid or '')
end
local function leave_waiting(job)
    call('ZREM', T, waiting_member(job))
    if job.key then
        call('ZREM', T, parked_member(job))
        touch(job.q, job.key)
    end
    if job.gid then
        call('ZREM', H, timed(job.q, job.run_at, job.id))
        touch_group(job.q, job.gid)
    end
    unwait(job)
end
-- Whether a newer version gave a job options that this one does not know. Who reserves one is told by its caller, which reads all of
-- them; a take has no time for that.
local ASKED = {backoff = true, timeout_ms = true, tags = true, headers = true}
local WITHIN = {group = true, concurrency = true, unique = true}
local function is_newer(job)
    local asked, at = chunk(job.rec, job.asked_at)
    local within_it = chunk(job.rec, at)
    local function has_others(options, known)
        if options == '' then return false end
        local is_sound, fields = pcall(cjson.decode, options)
        for name in pairs(is_sound and type(fields) == 'table' and fields or {}) do
            if not known[name] then return true end
        end
        return false
    end
    -- Behind a content type and a kind, and behind the name of the queue.
    return asked and has_others(sub(asked, behind_chunk(asked, behind_chunk(asked, 1))), ASKED)
        or within_it and has_others(sub(within_it, behind_chunk(within_it, 1)), WITHIN)
end
-- Puts off a waiting job that only a newer version may run, and that has left the timeline; nothing is counted.
local function hold(job)
    unwait(job)
    job.run_at, job.moved = min(now + HELD_FOR, END), true
    put_past(job)
    put_waiting(job)
    if job.key then touch(job.q, job.key) end
    ring(job.q, job.run_at)
end
-- The id in a member of t or e.
local function id_in(member)
    local at = byte(member, 4) < PARKED and 11 or 28
    return sub(member, at, at + 15)
end
local function lease_member(job) return job.q .. at6(job.run.till) .. job.id end
-- Moves the end of a lease to now plus its length; answers the run as it stands then.
local function extend_lease(id, run)
    call('ZREM', L, run.q .. at6(run.till) .. id)
    run.till = min(now + run.lasts, END)
    call('ZADD', L, '0', run.q .. at6(run.till) .. id)
    return put_run(id, run)
end
-- What a job counts against its queue's retention: the bytes of payload and result.
local function kept_bytes(job)
    return job.bytes + (job.result and #job.result - behind_chunk(job.result, 1) + 1 or 0)
end
local function ended_member(job)
    return job.q .. pack('>BI6', job.state, job.ended) .. job.id .. pack('>I4', kept_bytes(job))
end
local function leave_ended(job)
    call('ZREM', E, ended_member(job))
    tally(job.q, char(job.state), -kept_bytes(job))
end
-- A derived id outlives its record (S17).
local function remember(q, id, ended)
    if math.floor(byte(id, 7) / 16) ~= DERIVED or ended + ID_MEMORY <= now then return end
    local old = call('HGET', M, q .. id)
    if old then call('ZREM', K, q .. old .. id) end
    call('HSET', M, q .. id, at6(ended))
    call('ZADD', K, 0, q .. at6(ended) .. id)
    hint(q, 0)
end
-- Removes the record of a job that has left its place.
local function remove(job)
    call('HDEL', J, job.id)
    if job.past == '\1' then call('HDEL', X, job.id) end
    remember(job.q, job.id, job.ended or now)
end
-- Ends a job that has left its place.
local function finish(job, state, reason)
    job.state, job.ended, job.reason = state, now, reason
    if state ~= DONE then job.result = nil end
    tell_end(job)
    if job.scope ~= WINDOW then free_key(job) end
    end_live(job.q, job, job.id)
    tally(job.q, 'b', -job.bytes)
    if keeps_nothing(job.q, state) then
        remove(job)
    else
        put_past(job)
        call('ZADD', E, '0', ended_member(job))
        tally(job.q, char(state), kept_bytes(job))
        hint(job.q, 0)
    end
end
-- Removes a job that somebody deletes or purges; unlike age, that frees a window whose job never started.
local function delete(job)
    if job.state == WAITING then
        leave_waiting(job)
        end_live(job.q, job, job.id)
        tally(job.q, 'b', -job.bytes)
    else
        leave_ended(job)
    end
    if not (job.scope == WINDOW and job.started) then free_key(job) end
    tell_end(job)
    remove(job)
end

-- ── runs that end (the same arithmetic as lifecycle.rs) ──

-- The end of a run. `next`: state, attempt, crashes, snoozes, run_at or nil, reason, failed (words or nil).
local function leave_run(job, next)
    local run = job.run
    call('HDEL', R, job.id)
    call('ZREM', L, lease_member(job))
    end_keyed(job.q, run, job.id)
    if next.failed then
        local failures = job.failures
        failures[#failures + 1] =
            pack('>I4I6I6I2', job.attempt, run.started, now, #run.worker) .. run.worker .. next.failed
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
-- The end of a run whose lease is past its time (S9).
local function taken_back(job)
    local crashes = min(job.crashes + 1, CRASHES_MAX)
    local next = {attempt = job.attempt, crashes = crashes, snoozes = job.snoozes, failed = 'lease taken back'}
    if has(job.run.flags, 1) then
        next.state, next.reason = CANCELLED, 'cancelled'
    elseif POISON_LIMIT <= next.crashes and not has(job.run.flags, 32) then
        next.state, next.reason = DEAD, 'crashes'
    elseif job.max_attempts <= job.attempt then
        next.state, next.reason = DEAD, 'attempts'
    else
        next.state, next.attempt = WAITING, job.attempt + 1
        if 3 <= next.crashes or next.crashes == 2 and job.max_attempts <= next.attempt then
            local step, low16 = (next.crashes - 1) * job.run.lasts, byte(job.id, 15) * 256 + byte(job.id, 16)
            next.run_at = min(now + step + math.floor(step * low16 / 65536), END)
        end
    end
    leave_run(job, next)
    return next.state
end

-- Why a job ends at the end of its run, where that is not what the verdict says; as settle.rs reads it.
local OVERRULED = {attempts = 16, snoozes = 32, cancelled = 48, corrupt = 64}
-- The end of a run by a verdict that is no bare ack: a ack with a result, r retry, g retry and close the gate of the group, else
-- of the queue, s snooze, l release, h held, c cancel, d dead, with its rest. Answers the state, with what OVERRULED says.
local function verdict(job, what, rest)
    local next, overruled = {attempt = job.attempt, state = WAITING}, nil
    local function overrule(state, reason)
        next.state, next.reason, overruled = state, reason, OVERRULED[reason]
    end
    if what == 'g' then
        local kind, ms = unp('>c1I7', rest)
        local of = job.gid and group_of(job.q, job.gid) or queue(job.q)
        close(of, kind == 'a' and max(ms, now) or min(now + ms, END))
        of.hinted = true
        what = 'r'
    end
    if what == 'a' then
        next.state, job.result = DONE, rest
    elseif has(job.run.flags, 1) then
        -- S12: the end of the run decides, and anything but an ack obeys the request.
        overrule(CANCELLED, 'cancelled')
    elseif what == 'r' then
        local kind, ms = unp('>c1I7', rest)
        next.failed = sub(rest, 9)
        if job.max_attempts <= job.attempt then
            overrule(DEAD, 'attempts')
        else
            next.attempt = job.attempt + 1
            next.run_at = kind == 'a' and max(ms, now) or min(now + ms, END)
        end
    elseif what == 's' then
        next.snoozes = job.snoozes + 1
        if SNOOZES_MAX <= next.snoozes then
            overrule(DEAD, 'snoozes')
        else
            next.run_at = min(now + max(unp('>I7', rest), SNOOZE_MIN), END)
            if sub(rest, 8, 8) == '1' then next.reason = sub(rest, 9) end
        end
    elseif what == 'h' then
        -- Only a newer version may run it.
        next.crashes, next.snoozes, next.run_at = job.crashes, job.snoozes, min(now + HELD_FOR, END)
    elseif what == 'c' then
        next.state, next.reason = CANCELLED, rest
    elseif what == 'd' then
        next.state, next.reason, next.failed = DEAD, rest, rest
    end
    leave_run(job, next)
    return next.state + (overruled or 0)
end
-- The past of a job that is done, from the one it had; nil where that can't be read.
local function done_past(id, x)
    local job = {id = id}
    if not pcall(past, job, x) then return nil end
    tell_end(job)
    job.started, job.state, job.ended, job.reason, job.crashes, job.snoozes = true, DONE, now, nil, 0, 0
    return past_of(job)
end
-- Keeps what a run tells, if its past can be read; `notes` is all that was told.
local function note(id, run, notes)
    local job = {id = id}
    if not pcall(past, job, call('HGET', X, id)) then return end
    job.notes = notes
    put_past(job)
    set_past(run)
end
-- Takes back leases of these queues that are past their time, oldest first (S9). Answers them: fence8 id state1 name as a
-- chunk.
local function take_back(named)
    local late, met = {}, {}
    for _, q in ipairs(named) do
        if not met[q] then
            met[q] = true
            local some = call('ZRANGEBYLEX', L, '[' .. q, '(' .. q .. at6(now + 1), 'LIMIT', 0, TAKE_BACK_MAX)
            for _, member in ipairs(some) do late[#late + 1] = sub(member, 4) .. q end
        end
    end
    table.sort(late)
    local answer = {}
    for i = 1, min(#late, TAKE_BACK_MAX) do
        local id, q = sub(late[i], 7, 22), sub(late[i], 23)
        local job = load(id)
        if job and job.run then
            answer[#answer + 1] = pack('>I8', job.run.fence) .. id .. char(taken_back(job)) .. name_of(q)
        else
            -- A lease without a job leads nowhere: it is dropped, as an audit would.
            end_lost(q, id)
            call('ZREM', L, q .. sub(late[i], 1, 6) .. id)
            call('HDEL', R, id)
        end
    end
    return concat(answer)
end

-- ── upkeep (S17) ──

-- Each part answers how much it did, and when there will be more to do.
-- Stops behind so many bytes of records.
local function expire(q, bytes_max, limit)
    local due = call('ZRANGEBYLEX', O, '[' .. q, '(' .. q .. at6(now + 1), 'LIMIT', 0, limit)
    for i, member in ipairs(due) do
        local job = load(sub(member, 10))
        if job and job.state == WAITING then
            leave_waiting(job)
            finish(job, CANCELLED, 'expired')
        else
            call('ZREM', O, member)
        end
        if bytes_max <= shard.bytes then return i, now end
    end
    if #due == limit then return #due, now end
    local from, to = within(q)
    local first = call('ZRANGEBYLEX', O, from, to, 'LIMIT', 0, 1)[1]
    return #due, first and unp('>I6', first, 4) or NEVER
end
-- Removes ended jobs past a bound, oldest end first. `ageless`: done and cancelled ones whatever their age.
local function retire(q, state, ageless, limit)
    local from, to = within(q .. char(state))
    local first = call('ZRANGEBYLEX', E, from, to, 'LIMIT', 0, 1)[1]
    if not first then return 0, NEVER end
    local keep = limits_of(q).keep[state]
    local count = call('ZLEXCOUNT', E, from, to)
    local bytes = counter(q .. char(state)) + (shard.tallies[q .. char(state)] or 0)
    local function is_past(member)
        return keeps_nothing(q, state) or unp('>I6', member, 5) + keep[1] <= now or keep[2] < count or keep[3] < bytes
            or ageless and state ~= DEAD
    end
    if not is_past(first) then return 0, unp('>I6', first, 5) + keep[1] end
    local members, ids, next = {}, {}, NEVER
    for i, member in ipairs(call('ZRANGEBYLEX', E, from, to, 'LIMIT', 0, limit + 1)) do
        if limit < i or not is_past(member) then
            next = limit < i and now or unp('>I6', member, 5) + keep[1]
            break
        end
        local ended, id, size = unp('>I6c16I4', member, 5)
        count, bytes = count - 1, bytes - size
        members[#members + 1], ids[#ids + 1] = member, id
        tally(q, char(state), -size)
        remember(q, id, ended)
    end
    call('ZREM', E, unpack(members))
    call('HDEL', J, unpack(ids))
    call('HDEL', X, unpack(ids))
    return #ids, next
end
local function forget_ids(q, limit)
    local from, to = within(q)
    local old = call('ZRANGEBYLEX', K, from, to, 'LIMIT', 0, limit)
    if #old == 0 then return 0, NEVER end
    local over = call('ZLEXCOUNT', K, from, to) - ID_MEMORY_MAX
    for i, member in ipairs(old) do
        local ended, id = unp('>I6c16', member, 4)
        if over < i and now < ended + ID_MEMORY then return i - 1, ended + ID_MEMORY end
        call('ZREM', K, member)
        call('HDEL', M, q .. id)
    end
    return #old, now
end
local function forget_windows(limit)
    local past_end = call('ZRANGEBYLEX', V, '-', '(' .. at6(now + 1), 'LIMIT', 0, limit)
    for _, member in ipairs(past_end) do
        call('ZREM', V, member)
        call('HDEL', U, sub(member, 7))
    end
    local first = call('ZRANGEBYLEX', V, '-', '+', 'LIMIT', 0, 1)[1]
    return #past_end, first and unp('>I6', first) or NEVER
end
-- They go in the order of their last calls: so whoever called again gets its place in time first. More of them than some rounds
-- meet wait.
local function forget_calls(limit)
    local forgotten = 0
    for _ = 1, FORGET_ROUNDS_MAX do
        local idle = call('ZRANGEBYSCORE', A, '-inf', text(now - CALL_MEMORY), 'WITHSCORES', 'LIMIT', 0, max(limit, FORGET_LOOK))
        local is_in_order = true
        for i = 1, #idle, 2 do
            local last = call('HGET', P, idle[i])
            local at = last and unp('>I6', last, 9)
            if at and tonumber(idle[i + 1]) < at then
                call('ZADD', A, text(at), idle[i])
                is_in_order = false
            end
        end
        if is_in_order then
            forgotten = min(limit, #idle / 2)
            for i = 1, 2 * forgotten, 2 do
                call('ZREM', A, idle[i])
                call('HDEL', P, idle[i])
            end
            break
        end
    end
    local first = call('ZRANGE', A, 0, 0, 'WITHSCORES')[2]
    return forgotten, first and tonumber(first) + CALL_MEMORY or NEVER
end

-- Sweeps these queues in turn, then store-wide, at most `limit` items. `slice`: of a sweep that does not ride, which looks
-- also where nothing is said to be due: the names of the queues, whether it is the last one, and `ageless`. Such a one is bounded in bytes, too: it
-- answers in which of the queues the next one goes on, if it stopped at that.
local function sweep(named, limit, slice)
    local bytes_max, idle = slice and BYTES_MAX or NEVER, REGROUP_MAX
    local function some(what, n)
        shard.swept[what], limit = shard.swept[what] + n, limit - n
    end
    for i, q in ipairs(named) do
        if limit == 0 then break end
        if slice or queue(q).due <= now then
            local next = NEVER
            local function part(what, work, ...)
                if limit == 0 then
                    next = 0
                    return
                end
                local args = {...}
                args[#args + 1] = limit
                local n, due = work(unpack(args))
                some(what, n)
                next = min(next, due)
            end
            part('expired', expire, q, bytes_max)
            -- What it says to be due is left as it is.
            if bytes_max <= shard.bytes then return i end
            for state = DONE, DEAD do part('removed', retire, q, state, slice and slice.ageless or false) end
            part('forgotten', forget_ids, q)
            local row = queue(q)
            row.due, row.hinted = next, true
            if slice and 0 < row.let then
                -- What is remembered of groups for a time that is over goes by and by, also where nobody reserves.
                for _, member in ipairs(groups_in(q, 'g', now, idle)) do
                    regroup(group_in(q, member))
                    idle = idle - 1
                end
            end
            if slice and next == NEVER and not holds_something(q) then rest(q, slice.names[i]) end
        end
    end
    local is_wide = shard.wide <= now
    if slice then is_wide = slice.is_last end
    if is_wide and 0 < limit then
        local n, due = forget_windows(limit)
        some('forgotten', n)
        shard.wide = due
        if 0 < limit then
            n, due = forget_calls(limit)
            some('forgotten', n)
            shard.wide = min(shard.wide, due)
        else
            shard.wide = 0
        end
    end
end

return {
    hint_wide = hint_wide, within = within, behind_chunk = behind_chunk, as_chunk = as_chunk, kept_bytes = kept_bytes, note = note,
    wake = wake, limits_of = limits_of, counter = counter, name_of = name_of, new_queue = new_queue,
    ID_MEMORY = ID_MEMORY, UNTIL_START = UNTIL_START, WINDOW = WINDOW,
    head = head, kind_of = kind_of, past = past, past_of = past_of, put_past = put_past, run_of = run_of, put_run = put_run, set_past = set_past,
    of = of, load = load, bury = bury, is_hidden = is_hidden,
    holder = holder, put_key = put_key, window_end = window_end, free = free, free_key = free_key,
    waiting_member = waiting_member, put_waiting = put_waiting, unwait = unwait, leave_waiting = leave_waiting,
    is_newer = is_newer, hold = hold,
    room_of = room_of, spend = spend, parked_member = parked_member, id_in = id_in, touch = touch, is_full = is_full,
    live_member = live_member, put_live = put_live, end_live = end_live, first_live = first_live,
    end_keyed = end_keyed, end_lost = end_lost, is_behind = is_behind, is_blocked = is_blocked, hand_over = hand_over,
    timed = timed, touch_group = touch_group, is_open = is_open, regroup = regroup, let_in = let_in,
    first_in_ring = first_in_ring, leave_ring = leave_ring, mind_rest = mind_rest, charge = charge, charge_rest = charge_rest,
    first_group = first_group, group_of = group_of, look_at_groups = look_at_groups,
    lease_member = lease_member, extend_lease = extend_lease, set_company = set_company,
    ended_member = ended_member, leave_ended = leave_ended, remember = remember,
    finish = finish, delete = delete, verdict = verdict, OVERRULED = OVERRULED, done_past = done_past, take_back = take_back, sweep = sweep,
}
