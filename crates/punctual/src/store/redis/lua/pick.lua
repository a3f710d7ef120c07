-- Taking back and picking due jobs, for reserve, take, and the reserve behind a settle.

local TAKE_BACK_MAX, CANDIDATES_EXTRA = 32, 256
-- Records read at once: each may have a mebibyte, and how large they are is known only then.
local READ_MAX = 64

local lease_ends = {} -- q → when its first lease ends, where that is known: a time, or NEVER
-- Takes back leases past their time, oldest first (S9), unless the clock has just jumped (S14). Answers them: fence8 id
-- state1 name as a chunk.
local function take_back(named)
    local late = {}
    for _, q in ipairs(named) do
        if not lease_ends[q] then
            local from, to = within(q)
            local first = call('ZRANGEBYLEX', L, from, to, 'LIMIT', 0, 1)[1]
            lease_ends[q] = first and unp('>I6', first, 4) or NEVER
            if lease_ends[q] <= now and not no_take_back() then
                local some = call('ZRANGEBYLEX', L, from, '(' .. q .. at6(now + 1), 'LIMIT', 0, TAKE_BACK_MAX)
                for _, member in ipairs(some) do late[#late + 1] = sub(member, 4) .. q end
            end
        end
    end
    if #late == 0 then return '' end
    table.sort(late)
    local answer = {}
    for i = 1, min(#late, TAKE_BACK_MAX) do
        local id, q = sub(late[i], 7, 22), sub(late[i], 23)
        local job = jobs().load(id)
        if job and job.run then
            answer[#answer + 1] = pack('>I8', job.run.fence) .. id .. char(jobs().taken_back(job)) .. name_of(q)
        else
            -- A lease without a job leads nowhere: it is dropped, as an audit would.
            call('ZREM', L, q .. sub(late[i], 1, 6) .. id)
            call('HDEL', R, id)
        end
    end
    return concat(answer)
end
-- When the first lease of a queue ends that can be taken back then.
local function lease_end(q)
    local from, to = within(q)
    local function first(behind)
        local member = call('ZRANGEBYLEX', L, behind, to, 'LIMIT', 0, 1)[1]
        return member and unp('>I6', member, 4) or NEVER
    end
    local known = lease_ends[q]
    if known and now < known then return known end
    known = first(from)
    local pause = no_take_back()
    return pause and known <= now and min(pause, first('[' .. q .. at6(now + 1))) or known
end

-- Picks due jobs (run_at ≤ `till`) of one queue in order, and gives up to `most` to `each`; answers how many. `state`: what
-- one call has left: n, candidates, bytes, any, stopped, and whether a job on its last chance comes alone.
local function pick(walk, most, till, state, each)
    local q = walk.q
    local lifo = queue(q).lifo
    local before, wanted = state.n, min(most, state.n)
    while 0 < wanted and 0 < state.candidates and not state.stopped do
        look(walk)
        if walk.over then break end
        if till < walk.due then
            leave_level(walk)
        else
            local asked = min(wanted, state.candidates, READ_MAX)
            local from, to = '[' .. q .. char(walk.level), '(' .. q .. pack('>BI6', walk.level, till + 1)
            local members
            -- One more tells whether there are more.
            if lifo then
                members = call('ZREVRANGEBYLEX', T, to, from, 'LIMIT', 0, asked + 1)
            else
                members = call('ZRANGEBYLEX', T, from, to, 'LIMIT', 0, asked + 1)
            end
            local ids = {}
            for i = 1, min(#members, asked) do ids[i] = sub(members[i], 11, 26) end
            local records = call('HMGET', J, unpack(ids))
            local looked = 0
            for i, id in ipairs(ids) do
                local rec = records[i]
                if rec then
                    local flags, _, _, _, _, s1, s2, s3 = byte(rec, 1, 8)
                    local bytes, job = #rec - s1 * 65536 - s2 * 256 - s3, nil
                    local has_past = byte(members[i], 27) == 1
                    if 1 < flags or has_past then job = jobs().of(id, rec, has_past and call('HGET', X, id)) end
                    if job and job.expires and job.expires <= now then
                        jobs().unwait(job)
                        jobs().finish(job, CANCELLED, 'expired')
                    else
                        local alone = state.parts and job and POISON_LIMIT <= job.crashes + 1
                        if state.any and (alone or BYTES_MAX < state.bytes + bytes) then
                            state.stopped = true
                            break
                        end
                        if job then jobs().unwait(job) end
                        state.bytes, state.any, state.stopped = state.bytes + bytes, true, alone
                        state.n, wanted = state.n - 1, wanted - 1
                        each(id, rec, bytes, job)
                    end
                end
                looked, state.candidates = i, state.candidates - 1
                if state.stopped then break end
            end
            -- They leave the timeline in one go: what was looked at is always its first part.
            if 0 < looked then
                local first, last = members[1], members[looked]
                if lifo then first, last = last, first end
                call('ZREMRANGEBYLEX', T, '[' .. first, '[' .. last)
            end
            if looked == #members then walk.due = nil end
        end
    end
    return before - state.n
end
