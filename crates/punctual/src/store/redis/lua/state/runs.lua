-- The ends of runs: by a verdict, or by an expired lease. The arithmetic is that of core/lifecycle.rs.

-- Ends a run. `next`: state, attempt, expired_leases, snoozes, run_at or nil, reason, failed (words or nil).
local function leave_run(job, next)
    local run = job.run
    call('HDEL', $RUNS, job.id)
    call('ZREM', $LEASES, lease_member(job))
    end_keyed(job.q, run, job.id)
    if next.failed then
        local failures = job.failures
        failures[#failures + 1] =
            pack('>I4I6I6I2', job.attempt, run.started, now, #run.worker) .. run.worker .. next.failed
        if $FAILURES_MAX < #failures then table.remove(failures, 1) end
    end
    job.attempt, job.expired_leases, job.snoozes = next.attempt, next.expired_leases or 0, next.snoozes or 0
    job.started, job.run = true, nil
    if next.state ~= $WAITING then return finish(job, next.state, next.reason) end
    job.state, job.reason = $WAITING, next.reason
    if next.run_at and next.run_at ~= job.run_at then job.run_at, job.moved = next.run_at, true end
    put_history(job)
    put_waiting(job)
    notify(job.q, job.run_at)
end
-- Ends a run whose lease expired (S9). Returns the state of the job.
local function reclaimed(job)
    local expired_leases = min(job.expired_leases + 1, $EXPIRED_LEASES_MAX)
    local next = {attempt = job.attempt, expired_leases = expired_leases, snoozes = job.snoozes, failed = 'lease expired'}
    if has(job.run.flags, 1) then
        next.state, next.reason = $CANCELLED, 'cancelled'
    elseif $POISON_LIMIT <= next.expired_leases and not has(job.run.flags, 32) then
        next.state, next.reason = $DEAD, 'crashes'
    elseif job.max_attempts <= job.attempt then
        next.state, next.reason = $DEAD, 'attempts'
    else
        next.state, next.attempt = $WAITING, job.attempt + 1
        if 3 <= next.expired_leases or next.expired_leases == 2 and job.max_attempts <= next.attempt then
            local step, low16 = (next.expired_leases - 1) * job.run.lasts, byte(job.id, 15) * 256 + byte(job.id, 16)
            next.run_at = min(now + step + math.floor(step * low16 / 65536), $INSTANT_MAX_MS)
        end
    end
    leave_run(job, next)
    return next.state
end

-- Why a job ends with its run, if that is not what the verdict says. The numbers are those that settle.rs reads.
local OVERRULED = {attempts = 16, snoozes = 32, cancelled = 48, corrupt = 64}
-- Ends a run by a verdict that is not a bare ack; `rest` is the rest of the verdict:
--   a ack with a result; r retry; g retry and pause the group, or else the queue; s snooze; l release; h held for a
--     newer version; c cancel; d dead
-- Returns the state, plus a number of OVERRULED.
local function verdict(job, what, rest)
    local next, overruled = {attempt = job.attempt, state = $WAITING}, nil
    local function overrule(state, reason)
        next.state, next.reason, overruled = state, reason, OVERRULED[reason]
    end
    if what == 'g' then
        local kind, ms = unp('>c1I7', rest)
        local of = job.gid and group_of(job.q, job.gid) or queue(job.q)
        close(of, kind == 'a' and max(ms, now) or min(now + ms, $INSTANT_MAX_MS))
        of.hinted = true
        what = 'r'
    end
    if what == 'a' then
        next.state, job.result = $DONE, rest
    elseif has(job.run.flags, 1) then
        -- S12: the end of the run decides. Any verdict but an ack obeys the request.
        overrule($CANCELLED, 'cancelled')
    elseif what == 'r' then
        local kind, ms = unp('>c1I7', rest)
        next.failed = sub(rest, 9)
        if job.max_attempts <= job.attempt then
            overrule($DEAD, 'attempts')
        else
            next.attempt = job.attempt + 1
            next.run_at = kind == 'a' and max(ms, now) or min(now + ms, $INSTANT_MAX_MS)
        end
    elseif what == 's' then
        next.snoozes = job.snoozes + 1
        if $SNOOZES_MAX <= next.snoozes then
            overrule($DEAD, 'snoozes')
        else
            next.run_at = min(now + max(unp('>I7', rest), $SNOOZE_MIN), $INSTANT_MAX_MS)
            -- With a reason, its worker held it: it did not run.
            if sub(rest, 8, 8) == '1' then next.reason, next.expired_leases = sub(rest, 9), job.expired_leases end
        end
    elseif what == 'h' then
        -- Only a newer version may run it.
        next.expired_leases, next.snoozes, next.run_at = job.expired_leases, job.snoozes, min(now + $HELD_FOR, $INSTANT_MAX_MS)
    elseif what == 'c' then
        next.state, next.reason = $CANCELLED, rest
    elseif what == 'd' then
        next.state, next.reason, next.failed = $DEAD, rest, rest
    end
    leave_run(job, next)
    return next.state + (overruled or 0)
end
-- Returns the history of a done job, made from the one it had; nil if that cannot be read.
local function done_history(id, x)
    local job = {id = id}
    if not pcall(history, job, x) then return nil end
    notify_end(job)
    job.started, job.state, job.ended, job.reason, job.expired_leases, job.snoozes = true, $DONE, now, nil, 0, 0
    return history_of(job)
end
-- Stores the notes of a run, if its history can be read; `notes` are all notes so far.
local function note(id, run, notes)
    local job = {id = id}
    if not pcall(history, job, call('HGET', $HISTORIES, id)) then return end
    job.notes = notes
    put_history(job)
    set_history(run)
end
-- Shortens leases of these queues that end later than their length from now, because the clock went back: those that end last.
local function shorten(named)
    local last, met = {}, {}
    for _, q in ipairs(named) do
        if not met[q] then
            met[q] = true
            local some = whole('ZREVRANGEBYLEX', $LEASES, '(' .. q .. '\255', '[' .. q, $RECLAIM_MAX, 25)
            for _, member in ipairs(some) do last[#last + 1] = sub(member, 4) .. q end
        end
    end
    table.sort(last)
    for i = #last, max(1, #last - $RECLAIM_MAX + 1), -1 do
        local id, row = sub(last[i], 7, 22), nil
        row = call('HGET', $RUNS, id)
        if row and now + run_of(row).lasts < run_of(row).till then extend_lease(id, run_of(row)) end
    end
end
-- Looks at the expired leases of these queues that ended first, and reclaims those that no silence holds back (S9). Returns them:
-- fence8 id state1, name as a chunk; and how many they are. `limit`: how many it looks at, at most. `after`: for how long they must have
-- been over.
local function reclaim(named, limit, after)
    local expired, met = {}, {}
    limit = min(limit or $RECLAIM_MAX, $RECLAIM_MAX)
    if shard.can_end_late() then shorten(named) end
    for _, q in ipairs(named) do
        if not met[q] then
            met[q] = true
            local some = whole('ZRANGEBYLEX', $LEASES, '[' .. q, '(' .. q .. at6(now + 1), limit, 25)
            for _, member in ipairs(some) do expired[#expired + 1] = sub(member, 4) .. q end
        end
    end
    table.sort(expired)
    local answer = {}
    for i = 1, min(#expired, limit) do
        local id, q = sub(expired[i], 7, 22), sub(expired[i], 23)
        local job, member = load(id), q .. sub(expired[i], 1, 6) .. id
        local is_its_own = job and job.run and lease_member(job) == member
        if not is_its_own then call('ZREM', $LEASES, member) end
        if not job or not job.run then
            -- A lease without a job is of no use: it is dropped, as an audit would do.
            end_lost(q, id)
            call('HDEL', $RUNS, id)
        elseif not is_its_own and call('ZSCORE', $LEASES, lease_member(job)) then
            -- The run goes on under another end.
            set_aside($LEASES, member)
        elseif not is_its_own and now < job.run.till and job.run.till <= now + job.run.lasts then
            -- The member was damaged, and its holder may live: the run says when it ends.
            call('ZADD', $LEASES, '0', lease_member(job))
        elseif not is_its_own or shard.over_at(job.run.till, job.run.lasts) + (after or 0) <= now then
            answer[#answer + 1] = pack('>I8', job.run.fence) .. id .. char(reclaimed(job)) .. name_of(q)
        end
    end
    return concat(answer), #answer
end
-- Reclaims the lease of a running job if nobody else has for some time. Returns the state of the job if so.
local function reclaim_if_over(job)
    if shard.can_end_late() and now + job.run.lasts < job.run.till then extend_lease(job.id, job.run) end
    if shard.over_at(job.run.till, job.run.lasts) + $ORPHANED_AFTER <= now then return reclaimed(job) end
end

rules.reclaim_if_over = reclaim_if_over
rules.OVERRULED, rules.verdict, rules.done_history, rules.note, rules.reclaim = OVERRULED, verdict, done_history, note, reclaim
