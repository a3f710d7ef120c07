-- Taking back and picking due jobs, for reserve, take, and the reserve behind a settle.

-- Takes back leases past their time, oldest first (S9), unless the clock has just jumped (S14). Answers them: fence8 id
-- state1 name as a chunk.
local function take_back(named)
    if no_take_back() then return '' end
    local late, looked = {}, {}
    for _, q in ipairs(named) do
        if not looked[q] then
            looked[q] = true
            local some = call('ZRANGEBYLEX', L, '[' .. q, '(' .. q .. at6(now + 1), 'LIMIT', 0, TAKE_BACK_MAX)
            for _, member in ipairs(some) do late[#late + 1] = sub(member, 4) .. sub(member, 1, 3) end
        end
    end
    table.sort(late)
    local answer = {}
    for i = 1, min(#late, TAKE_BACK_MAX) do
        local id, q = sub(late[i], 7, 22), sub(late[i], 23)
        local job = load(id)
        if job and job.run then
            answer[#answer + 1] = pack('>I8', job.run.fence) .. id .. char(taken_back(job)) .. queue(q).name
        else
            -- A lease without a job leads nowhere: it is dropped, as an audit would.
            call('ZREM', L, q .. sub(late[i], 1, 6) .. id)
            call('HDEL', R, id)
        end
    end
    return concat(answer)
end

-- Records read at once: each may have a mebibyte, and how large they are is known only then.
local READ_MAX = 64

-- Walks due jobs (run_at ≤ `till`) of one queue in order, and gives up to `most` to `each`; answers how many. `state`: what
-- one call has left: n, candidates, bytes, any, stopped, and whether a job on its last chance comes alone.
local function pick(q, most, till, state, each)
    local settings = queue(q)
    if settings.paused then return 0 end
    local wanted = min(most, state.n)
    local left_before = state.n
    for level = 0, LEVELS - 1 do
        local from, to = '[' .. q .. char(level), '(' .. q .. pack('>BI6', level, till + 1)
        while 0 < wanted and 0 < state.candidates and not state.stopped do
            local asked = min(wanted, state.candidates, READ_MAX)
            local members
            if settings.lifo then
                members = call('ZREVRANGEBYLEX', T, to, from, 'LIMIT', 0, asked)
            else
                members = call('ZRANGEBYLEX', T, from, to, 'LIMIT', 0, asked)
            end
            if #members == 0 then break end
            local ids = {}
            for i = 1, #members do ids[i] = sub(members[i], 11, 26) end
            local records = call('HMGET', J, unpack(ids))
            local left = 0
            for i = 1, #members do
                local id, rec, mark = ids[i], records[i], sub(members[i], 27)
                local given = false
                if rec then
                    local job = {id = id, rec = rec, state = WAITING}
                    head(job, rec)
                    past(job, mark == '\1' and call('HGET', X, id))
                    if job.expires and job.expires <= now then
                        if 1 < job.attempt then tally(q, 'r', -1) end
                        call('ZREM', O, q .. at6(job.expires) .. id)
                        finish(job, CANCELLED, 'expired')
                    else
                        local bytes = state.bytes + job.bytes
                        local alone = state.parts and POISON_LIMIT <= job.crashes + 1
                        if state.any and (alone or BYTES_MAX < bytes) then
                            state.stopped = true
                            break
                        end
                        if 1 < job.attempt then tally(q, 'r', -1) end
                        if job.expires then call('ZREM', O, q .. at6(job.expires) .. id) end
                        state.bytes, state.any, state.stopped = bytes, true, alone
                        state.n = state.n - 1
                        given = true
                        each(job, settings)
                    end
                end
                left, state.candidates = i, state.candidates - 1
                if given then wanted = wanted - 1 end
                if state.stopped then break end
            end
            -- They leave the timeline in one go: what was looked at is always its first part.
            if 0 < left then
                local first, last = members[1], members[left]
                if settings.lifo then first, last = last, first end
                call('ZREMRANGEBYLEX', T, '[' .. first, '[' .. last)
            end
            if #members < asked then break end
        end
    end
    return left_before - state.n
end

local fence
local function next_fence()
    fence = max(fence or tonumber(call('HGET', S, 'fence') or 0), now * 1000) + 1
    return fence
end
local function put_fence()
    if fence then call('HSET', S, 'fence', text(fence)) end
end

-- When there may be work in these queues: a waiting job is due, or a lease past its time; nil: never.
local function next_of(named)
    local next
    local function earlier(ms)
        if ms and (not next or ms < next) then next = ms end
    end
    local pause = no_take_back()
    for _, q in ipairs(named) do
        if not queue(q).paused then earlier(first_due(q)) end
        local _, to = within(q)
        local first = call('ZRANGEBYLEX', L, '[' .. q, to, 'LIMIT', 0, 1)[1]
        local till = first and unp('>I6', first, 4)
        if till and pause and till <= now then
            earlier(pause)
            first = call('ZRANGEBYLEX', L, '[' .. q .. at6(now + 1), to, 'LIMIT', 0, 1)[1]
            till = first and unp('>I6', first, 4)
        end
        earlier(till)
    end
    return next
end
