-- Picks due jobs, for reserve, take, and the reserve after a settle.

-- Picks due jobs (run_at ≤ `till`) of one walk in order, and passes up to `most` of them to `each`. Returns how many.
-- `state` is what the call has left: n, candidates, services, bytes, any, stopped. `state.parts`: a suspect is reserved
-- alone. `state.takes`: the picked jobs run no longer than this step.
-- If the timeline is out of order, it mends some of it. Cost then: two ranges, and up to 2 * $ASIDE_MAX writes.
local function pick(walk, most, till, state, each)
    -- Records read at once. A long payload is not part of one, unless an earlier version wrote it.
    local READ_MAX = 64
    local q, prefix, lifo = walk.q, walk.prefix, queue(walk.q).lifo
    local level_at = #prefix + 1 -- in a member: level1 run_at6 id past1
    local id_at, history_at = level_at + 7, level_at + 23
    local before, wanted = state.n, min(most, state.n, (room_of(q, state.takes)))
    while 0 < wanted and 0 < state.candidates and not state.stopped and is_due(walk, till) do
        local asked = min(wanted, state.candidates, READ_MAX)
        local from, to = '[' .. prefix .. char(walk.level), '(' .. prefix .. pack('>BI6', walk.level, till + 1)
        local members
        -- One more shows whether there are more.
        if lifo then
            members = call('ZREVRANGEBYLEX', $TIMELINE, to, from, 'LIMIT', 0, asked + 1)
        else
            members = call('ZRANGEBYLEX', $TIMELINE, from, to, 'LIMIT', 0, asked + 1)
        end
        local ids = {}
        for i = 1, min(#members, asked) do ids[i] = sub(members[i], id_at, history_at - 1) end
        if #ids == 0 then
            -- Something else damaged the order: the job that is due is not found. The next call goes on.
            rules().out_of_order($TIMELINE, $ASIDE_MAX, true)
            walk.past, walk.over = now, true
            break
        end
        local records = call('HMGET', $RECORDS, unpack(ids))
        local looked = 0
        for i, id in ipairs(ids) do
            local rec = records[i]
            if rec then
                local flags, _, _, _, _, s1, s2, s3 = byte(rec, 1, 8)
                local bytes, job = s3 and #rec - s1 * 65536 - s2 * 256 - s3 or -1, nil -- of a payload that is stored apart, none yet
                local has_history, is_sound = byte(members[i], history_at) == 1, 0 <= bytes
                if is_sound and (1 < flags % 128 or has_history or state.takes) then
                    is_sound, job = pcall(rules().of, id, rec, has_history and call('HGET', $HISTORIES, id))
                end
                if is_sound and 128 <= flags then
                    is_sound = bytes == 0 and 24 < #rec
                    bytes = job and job.apart or is_sound and unp('>I4', rec, 15 + flags % 2 * 6)
                end
                local is_newer = false
                if is_sound and state.takes then is_sound, is_newer = pcall(rules().is_newer, job) end
                if not is_sound then
                    rules().bury(q, id)
                    -- Blocked jobs of the key may be next after this one.
                    local husk = {}
                    pcall(rules().head, husk, rec)
                    if husk.key then rules().touch(q, husk.key) end
                elseif job and job.expires and job.expires <= now then
                    rules().unwait(job)
                    if job.key then rules().touch(q, job.key) end
                    rules().finish(job, $CANCELLED, 'expired')
                elseif is_newer then
                    rules().hold(job)
                elseif job and job.key and (rules().is_full(job) or rules().is_behind(job, members[i])) then
                    call('ZADD', $TIMELINE, '0', rules().blocked_member(job))
                    rules().touch(q, job.key)
                else
                    local alone = state.parts and job and $POISON_LIMIT <= job.expired_leases + 1
                    if state.any and (alone or $BATCH_BYTES_MAX < state.bytes + bytes) then
                        state.stopped = true
                        break
                    end
                    if job then rules().unwait(job) end
                    state.bytes, state.any, state.stopped = state.bytes + bytes, true, alone
                    state.n, wanted = state.n - 1, wanted - 1
                    each(id, rec, bytes, job)
                end
            end
            looked, state.candidates = i, state.candidates - 1
            if state.stopped then break end
        end
        -- Jobs leave the timeline in one command: those that were checked are always its first part.
        if 0 < looked then
            local first, last = members[1], members[looked]
            if lifo then first, last = last, first end
            if call('ZREMRANGEBYLEX', $TIMELINE, '[' .. first, '[' .. last) < looked then
                -- Something else damaged the order: a job that stays would run again.
                call('ZREM', $TIMELINE, unpack(members, 1, looked))
                rules().out_of_order($TIMELINE, $ASIDE_MAX, true)
            end
            if walk.gid then
                local timed = {}
                for i = 1, looked do
                    if history_at <= #members[i] then timed[#timed + 1] = rules().timed(q, unp('>I6', members[i], level_at + 1), ids[i]) end
                end
                if 0 < #timed then call('ZREM', $GROUPS_BY_PLACE, unpack(timed)) end
            end
        end
        if looked == #members then walk.due = nil end
    end
    local given = before - state.n
    if 0 < given and $LIMITED <= queue(q).flags then rules().spend(q, given, state.takes) end
    return given
end
-- Upkeep that is part of reserve, take and settle, if some is due (S17): some items, and `more` for the jobs that were
-- settled.
local function sweep_ride(named, more)
    local SWEEP_RIDE_MAX = $SWEEP_RIDE_MAX
    local is_due = shard.wide <= now
    for _, q in ipairs(named) do is_due = is_due or queue(q).due <= now end
    if is_due then rules().sweep(named, SWEEP_RIDE_MAX + more) end
end
