-- Upkeep (S17): expired jobs end, ended ones past a bound go, what was remembered long enough is forgotten.
local SWEEP_RIDE_MAX = 100
local swept = {expired = 0, removed = 0, forgotten = 0}
local function make_upkeep()
    local ID_MEMORY_MAX, ROUNDS_MAX = 1000000, 4
    local ID_MEMORY = jobs().ID_MEMORY

    -- Each part answers how much it did, and when there will be more to do.
    local function expire(q, limit)
        local due = call('ZRANGEBYLEX', O, '[' .. q, '(' .. q .. at6(now + 1), 'LIMIT', 0, limit)
        for _, member in ipairs(due) do
            local job = jobs().load(sub(member, 10))
            if job and job.state == WAITING then
                jobs().leave_waiting(job)
                jobs().finish(job, CANCELLED, 'expired')
            else
                call('ZREM', O, member)
            end
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
        local keep = queue(q).keep[state]
        local count = call('ZLEXCOUNT', E, from, to)
        local bytes = tonumber(call('HGET', C, q .. char(state)) or 0) + (tallies[q .. char(state)] or 0)
        local function is_past(member)
            return keeps_nothing(keep) or unp('>I6', member, 5) + keep[1] <= now or keep[2] < count or keep[3] < bytes
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
            jobs().remember(q, id, ended)
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
    -- An entry whose instance called again gets its place in time now; more of them than some rounds meet wait.
    local function forget_calls(limit)
        local forgotten = 0
        for _ = 1, ROUNDS_MAX do
            local idle = limit == forgotten and {}
                or call('ZRANGEBYSCORE', A, '-inf', text(now - CALL_MEMORY), 'LIMIT', 0, limit - forgotten)
            if #idle == 0 then break end
            local last = call('HMGET', P, unpack(idle))
            for i, member in ipairs(idle) do
                local at = last[i] and unp('>I6', last[i], 9)
                if at and now < at + CALL_MEMORY then
                    call('ZADD', A, text(at), member)
                else
                    call('ZREM', A, member)
                    call('HDEL', P, member)
                    forgotten = forgotten + 1
                end
            end
        end
        local first = call('ZRANGE', A, 0, 0, 'WITHSCORES')[2]
        return forgotten, first and tonumber(first) + CALL_MEMORY or NEVER
    end

    -- Sweeps these queues in turn, then store-wide, at most `limit` items. `ageless`: also where nothing is said to be due.
    local function sweep(named, limit, all, ageless)
        local function some(what, n)
            swept[what], limit = swept[what] + n, limit - n
        end
        for _, q in ipairs(named) do
            if all or queue(q).due <= now then
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
                part('expired', expire, q)
                for state = DONE, DEAD do part('removed', retire, q, state, ageless or false) end
                part('forgotten', forget_ids, q)
                local row = queue(q)
                row.due, row.hinted = next, true
            end
        end
        if (all or wide <= now) and 0 < limit then
            local n, due = forget_windows(limit)
            some('forgotten', n)
            wide = due
            if 0 < limit then
                n, due = forget_calls(limit)
                some('forgotten', n)
                wide = min(wide, due)
            else
                wide = 0
            end
        end
        swept.more = limit == 0
    end
    return sweep
end
-- What rides on reserve, take and settle, behind turn().
local function sweep_ride(named, limit)
    local is_due = wide <= now
    for _, q in ipairs(named) do is_due = is_due or queue(q).due <= now end
    if is_due then make_upkeep()(named, limit) end
end
