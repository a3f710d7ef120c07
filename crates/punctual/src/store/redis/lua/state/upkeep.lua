-- Upkeep (S17): what a sweep removes. It goes by steady time, which does not follow a step of the clock at once.

local FORGET_ROUNDS_MAX, FORGET_LOOK = 4, 100
local steady

-- Returns the time of the clock at which steady time reaches `at`.
local function shown(at)
    if at <= steady or at == $NEVER or steady == now or shard.grace <= at then return at end
    return min(at + now - steady, shard.grace)
end

-- Each part returns how much it did, and when there will be more to do, in steady time; 0: at once.
-- This part stops once `bytes_max` bytes of records have been read.
local function expire(q, bytes_max, limit)
    local due = whole('ZRANGEBYLEX', $EXPIRIES, '[' .. q, '(' .. q .. at6(steady + 1), limit, 25)
    for i, member in ipairs(due) do
        local job = load(sub(member, 10))
        if job and job.state == $WAITING and job.expires == unp('>I6', member, 4) then
            leave_waiting(job)
            finish(job, $CANCELLED, 'expired')
        else
            -- Something else damaged it. What the job says of itself is right.
            call('ZREM', $EXPIRIES, member)
            if job and job.state == $WAITING and job.expires then call('ZADD', $EXPIRIES, 0, q .. at6(job.expires) .. job.id) end
        end
        if bytes_max <= shard.bytes then return i, 0 end
    end
    if #due == limit then return #due, 0 end
    local from, to = within(q)
    local first = whole('ZRANGEBYLEX', $EXPIRIES, from, to, 1, 25)[1]
    return #due, first and unp('>I6', first, 4) or $NEVER
end
-- Returns the bounds of jobs and bytes above which upkeep as a part of another call starts. It then removes down to those of the settings.
local function with_slack(keep)
    return keep[2] + min(math.floor(keep[2] / $KEEP_SLACK_DIVISOR), $KEEP_SLACK_JOBS_MAX),
        keep[3] + min(math.floor(keep[3] / $KEEP_SLACK_DIVISOR), $KEEP_SLACK_BYTES_MAX)
end
-- Removes ended jobs past a bound, oldest end first. `slice`: see sweep().
local function retire(q, state, slice, limit)
    local from, to = within(q .. char(state))
    local first = whole('ZRANGEBYLEX', $ENDED_JOBS, from, to, 1, 30)[1]
    if not first then return 0, $NEVER end
    local keep = limits_of(q).keep[state]
    local count = call('ZLEXCOUNT', $ENDED_JOBS, from, to)
    local bytes = counter(q .. char(state)) + (shard.tallies[q .. char(state)] or 0)
    local count_max, bytes_max = keep[2], keep[3]
    if not slice then count_max, bytes_max = with_slack(keep) end
    local is_exceeded, ageless = count_max < count or bytes_max < bytes, slice and slice.ageless
    local function is_past(member)
        return keeps_nothing(q, state) or unp('>I6', member, 5) + keep[1] <= steady or is_exceeded and (keep[2] < count or keep[3] < bytes)
            or ageless and state ~= $DEAD
    end
    if not is_past(first) then return 0, unp('>I6', first, 5) + keep[1] end
    local members, ids, payloads, next = {}, {}, {}, $NEVER
    for i, member in ipairs(whole('ZRANGEBYLEX', $ENDED_JOBS, from, to, limit + 1, 30)) do
        local is_over = limit < i or slice and 1 < i and $BATCH_BYTES_MAX <= shard.bytes
        if is_over or not is_past(member) then
            next = is_over and 0 or unp('>I6', member, 5) + keep[1]
            break
        end
        local ended, id, size = unp('>I6c16I4', member, 5)
        count, bytes = count - 1, bytes - size
        members[#members + 1], ids[#ids + 1] = member, id
        -- A dead job may have a record that cannot be read, and no known size.
        if $WITHIN_RECORD_MAX < size or state == $DEAD then
            payloads[#payloads + 1] = id
            shard.bytes = shard.bytes + size / $REMOVED_PER_READ
        end
        tally(q, char(state), -size)
        remember(q, id, ended)
    end
    call('ZREM', $ENDED_JOBS, unpack(members))
    call('HDEL', $RECORDS, unpack(ids))
    if 0 < #payloads then call('HDEL', $PAYLOADS, unpack(payloads)) end
    call('HDEL', $HISTORIES, unpack(ids))
    return #ids, next
end
local function forget_ids(q, limit)
    local from, to = within(q)
    local old = whole('ZRANGEBYLEX', $REMEMBERED_BY_END, from, to, limit, 25)
    if #old == 0 then return 0, $NEVER end
    local over = call('ZLEXCOUNT', $REMEMBERED_BY_END, from, to) - $ID_MEMORY_MAX
    for i, member in ipairs(old) do
        local ended, id = unp('>I6c16', member, 4)
        if over < i and steady < ended + $ID_MEMORY then return i - 1, ended + $ID_MEMORY end
        call('ZREM', $REMEMBERED_BY_END, member)
        call('HDEL', $REMEMBERED, q .. id)
    end
    return #old, #old == limit and 0 or $NEVER
end
local function forget_windows(limit)
    local past_end = whole('ZRANGEBYLEX', $WINDOWS, '-', '(' .. at6(steady + 1), limit, 22)
    for _, member in ipairs(past_end) do
        call('ZREM', $WINDOWS, member)
        call('HDEL', $UNIQUE_KEYS, sub(member, 7))
    end
    local first = whole('ZRANGEBYLEX', $WINDOWS, '-', '+', 1, 22)[1]
    return #past_end, first and unp('>I6', first) or $NEVER
end
-- Instances are checked in the order of their last calls. One that called again gets its new time first. Instances
-- beyond a few rounds wait.
local function forget_calls(limit)
    local forgotten = 0
    for _ = 1, FORGET_ROUNDS_MAX do
        local idle = call('ZRANGEBYSCORE', $CALLS_BY_TIME, '-inf', text(steady - $CALL_MEMORY), 'WITHSCORES', 'LIMIT', 0, max(limit, FORGET_LOOK))
        local is_in_order = true
        for i = 1, #idle, 2 do
            local last = call('HGET', $CALLS, idle[i])
            local at = last and 14 <= #last and unp('>I6', last, 9)
            if at and tonumber(idle[i + 1]) < at then
                call('ZADD', $CALLS_BY_TIME, text(at), idle[i])
                is_in_order = false
            end
        end
        if is_in_order then
            forgotten = min(limit, #idle / 2)
            for i = 1, 2 * forgotten, 2 do
                call('ZREM', $CALLS_BY_TIME, idle[i])
                call('HDEL', $CALLS, idle[i])
            end
            break
        end
    end
    local first = call('ZRANGE', $CALLS_BY_TIME, 0, 0, 'WITHSCORES')[2]
    return forgotten, first and tonumber(first) + $CALL_MEMORY or $NEVER
end
-- Notes how many jobs can be acked until a bound of done jobs could be passed, so that acks need no sweep until then. Each has at most
-- END_BYTES bytes. Returns when a job that is done now reaches its age; NEVER if none is kept, or none fits.
local function grant(q)
    local from, to = within(q .. char($DONE))
    local keep, bytes = limits_of(q).keep[$DONE], counter(q .. char($DONE)) + (shard.tallies[q .. char($DONE)] or 0)
    local jobs = call('ZLEXCOUNT', $ENDED_JOBS, from, to)
    local jobs_max, bytes_max = with_slack(keep)
    local ends = max(min($ENDS_MAX, jobs_max - jobs, math.floor((bytes_max - bytes) / $END_BYTES)), 0)
    -- Also writes 0, because earlier settings may have left a larger number.
    if call('HGET', $COUNTERS, q .. 'e') ~= text(ends) then call('HSET', $COUNTERS, q .. 'e', text(ends)) end
    return 0 < ends and 0 < jobs and now + keep[1] or $NEVER
end

-- Sweeps these queues in turn, then what belongs to no queue, at most `limit` items.
-- `slice` is set for a sweep that is not part of another call. Such a sweep also checks queues for which nothing is
-- due: `names` of the queues, `is_last` slice or not, and `ageless`, which removes done and cancelled jobs of any age.
-- It is bounded in bytes, too. If it stopped at that bound, it returns the position of the queue in which the next
-- sweep goes on.
local function sweep(named, limit, slice)
    steady = shard.steady()
    local bytes_max, idle = slice and $BATCH_BYTES_MAX or $NEVER, $REGROUP_MAX
    local function some(what, n)
        shard.swept[what], limit = shard.swept[what] + n, limit - n
    end
    for i, q in ipairs(named) do
        if limit == 0 then break end
        if slice or queue(q).due <= now then
            local next = $NEVER
            local function part(what, work, ...)
                if limit == 0 then
                    next = 0
                    return
                end
                local args = {...}
                args[#args + 1] = limit
                local n, due = work(unpack(args))
                some(what, n)
                next = min(next, shown(due))
            end
            if slice then
                part('reclaimed', function(most)
                    local _, n = reclaim({q}, most, $ORPHANED_AFTER)
                    return n, $NEVER
                end)
            end
            part('expired', expire, q, bytes_max)
            -- The due time in the queue's row is left as it is.
            if bytes_max <= shard.bytes then return i end
            for state = $DONE, $DEAD do part('removed', retire, q, state, slice or false) end
            if bytes_max <= shard.bytes then return i end
            part('forgotten', forget_ids, q)
            if now < next and not keeps_nothing(q, $DONE) then
                local ends_by = grant(q)
                -- A queue that holds nothing has no time for upkeep, so that it can be at rest.
                if not slice then next = min(next, ends_by) end
            end
            local row = queue(q)
            -- What is due now stays due if the clock goes back.
            row.due, row.hinted = now < next and next or 0, true
            if slice and 0 < row.let then
                -- Obsolete state of groups is removed step by step, also if no worker reserves.
                for _, member in ipairs(groups_in(q, 'g', now, idle)) do
                    regroup(group_in(q, member))
                    idle = idle - 1
                end
            end
            if slice then slice.next_reclaim = min(slice.next_reclaim, shard.watch_of(q, true)) end
            if slice and next == $NEVER and not holds_something(q) then rest(q, slice.names[i]) end
        end
    end
    local is_wide = shard.wide <= now
    if slice then is_wide = slice.is_last end
    if is_wide and 0 < limit then
        local n, due = forget_windows(limit)
        some('forgotten', n)
        shard.wide = shown(due)
        if 0 < limit then
            n, due = forget_calls(limit)
            some('forgotten', n)
            shard.wide = min(shard.wide, shown(due))
        else
            shard.wide = 0
        end
    end
end

rules.sweep = sweep
