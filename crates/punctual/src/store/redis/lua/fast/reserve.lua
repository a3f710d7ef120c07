-- The fast path of reserve and settle: at most one bare ack, then a reserve of at most one job in the same queue. The queue has no
-- limits, no lease in it has expired, and no upkeep is due. Neither job has a concurrency key or a history, and the reserved one no
-- expiry. A unique key of the reserved job is held until it is done. Groups have no limits, at most one of them comes to be due, and the
-- ack moves none. Arguments and answers are those of ../verbs/settle.lua and ../verbs/reserve/numbered.lua. A share matters only beside
-- other queues, and company only to a job with a history.
-- `acks`: 1, or 0; `from`: where the arguments of the reserve begin.
-- For any other call it returns nil before its first write, and the rest of the script answers: the general path. Both leave the
-- same keys, byte by byte, so a rule that changes there changes here.
-- Flags of a queue and lengths of rows: see queue() and read_shard() in ../base.lua; of runs and records: ../state/codec.lua.
-- Cost: O(log N), 10 to 27 commands; with groups, up to 19 more.
local function reserve_one(acks, from)
    -- A caller that trusts no time of others is for the general path.
    if #ARGV ~= from + 9 or ARGV[from + 9] == '?' then return end
    local call, pack, unp, sub, char, byte = redis.call, struct.pack, struct.unpack, string.sub, string.char, string.byte
    local now, into = tonumber(ARGV[1]), 0
    if not now then
        local t = call('TIME')
        now, into = t[1] * 1000 + math.floor(t[2] / 1000), t[2] % 1000
    end
    -- The shard and its clock. In another format, nothing else is read.
    local turn = call('HGET', $STATE, 'turn')
    if not turn or #turn < 34 then return end
    local seen, grace, fence, wide, epoch, format = unp('>I7I7I7I7I4I2', turn)
    -- Leases that end too late, because the clock went back, are for the general path. So is a mark after which the clock may be doubted.
    local silences = noted(sub(turn, 35), seen - 1, now)
    if 0 < seen and (seen - 1 + $STEP_MIN < now or now + $STEP_BACK_MIN < seen - 1) then return end
    if format ~= $FORMAT or wide <= now or silences ~= '' and now < unp('>I7', silences) then return end
    -- The run of the acked job. Its flags show a key, a group or a history. Any verdict but a bare ack is longer than a fence.
    local acked, acked_run, freed, acked_gid = ARGV[3], nil, nil, nil
    if acks == 1 then
        acked_run = call('HGET', $RUNS, acked)
        if not acked_run or #acked_run < 32 or sub(acked_run, 1, 8) ~= ARGV[4] then return end
        local flags = byte(acked_run, 18)
        if 32 <= flags or 8 <= flags % 16 or 2 <= flags % 4 then return end
        if 16 <= flags then acked_gid = 4 <= flags % 8 and sub(acked_run, 49, 64) or sub(acked_run, 33, 48) end
        if acked_gid and #acked_gid < 16 then return end
        if 4 <= flags % 8 then
            -- The row of a window is left to the general path.
            local holder = call('HGET', $UNIQUE_KEYS, sub(acked_run, 33, 48))
            if holder and sub(holder, 17) ~= '\0\0\0\0\0\0' then return end
            freed = holder and sub(holder, 1, 16) == acked and sub(acked_run, 33, 48)
        end
    end
    -- The queue: neither paused nor last in, first out; no limits. A row of 60 bytes is that of a queue which had groups.
    local q = call('HGET', $QUEUES, ARGV[from + 6])
    if not q or #q ~= 3 then return end
    local rows = call('HMGET', $SETTINGS, q, q .. 'w')
    local stored, row = rows[1], rows[2]
    if not stored or #stored < 133 or not row then return end
    local settings, version, lasts = unp('>BI4I4', stored)
    local has_groups = #row == 60
    if 64 <= settings or 0 < settings % 4 or not has_groups and (acked_gid or #row ~= 21 and #row ~= 39) then return end
    local upkeep, watch, spare = unp('>I7I7I7', row)
    if upkeep <= now or 21 < #row and now < unp('>I7', row, 22) then return end
    -- A call that is no repetition, and not of a clock that went back: see put_call() in ../base.lua.
    local key, number = ARGV[from] .. 'r', tonumber(ARGV[from + 1])
    local last = call('HGET', $CALLS, key)
    if not last or #last < 14 or number <= unp('>I8', last) or now < unp('>I6', last, 9) then return end
    local wanted = math.min(tonumber(ARGV[from + 2]), tonumber(ARGV[from + 8]))
    if wanted < 1 then return end

    -- The ack.
    local acked_place, bytes, counters = nil, nil, nil
    local keeps = settings % 16 < 8
    if acks == 1 then
        acked_place, bytes = sub(acked_run, 9, 17), unp('>I4', acked_run, 19)
        -- Without bytes, counters stay as they are.
        if sub(acked_place, 1, 3) ~= q or bytes == 0 then return end
        if keeps then
            local age = unp('>I7', stored, 24)
            if age == $OPEN then age = $KEEP_SHORT_AGE end
            if now + age < upkeep or $END_BYTES < bytes then return end
            counters = call('HMGET', $COUNTERS, q .. 'b', q .. char($DONE), q .. 'e')
            -- The second is that of kept bytes, of which there may be none yet.
            for i = 1, 3 do counters[i] = tonumber(counters[i] or i == 2 and 0) end
            if not (counters[1] and counters[2] and counters[3]) or counters[3] < 1 then return end
        elseif math.floor(byte(acked, 7) / 16) == $DERIVED then
            return -- its id is remembered
        end
    end

    -- The leases after the ack that end first.
    local leases, others = call('ZRANGEBYLEX', $LEASES, '[' .. q, '(' .. q .. '\255', 'LIMIT', 0, $WATCHED_MAX + acks), {}
    for _, member in ipairs(leases) do
        if #member < 25 then return end
        if acks == 0 or member ~= acked_place .. acked then others[#others + 1] = member end
    end
    local first = others[1]
    local till = first and unp('>I6', first, 4) or $NEVER
    if till <= now then return end
    -- Returns the first due job of the queue or of a group, and when the next one is due: now, if it is. Returns nothing if a member cannot
    -- be read. Lower levels come first. Within a level, members are sorted by time, so the first of each level is enough.
    local function look(prefix)
        local member, due, level = nil, $NEVER, 0
        while level < $LEVELS do
            local some = call('ZRANGEBYLEX', $TIMELINE, '[' .. prefix .. char(level), '(' .. prefix .. char($LEVELS), 'LIMIT', 0, member and 1 or 2)
            local next, at = some[1], nil
            if not next then break end
            if #next < #prefix + 24 then return end
            level, at = unp('>BI6', next, #prefix + 1)
            if at <= now and not member then
                member, next = next, some[2]
                if not next then break end
                if #next < #prefix + 24 then return end
                level, at = unp('>BI6', next, #prefix + 1)
            end
            if at <= now then return member, now end
            due, level = math.min(due, at), level + 1
        end
        return member, due
    end
    local member, due = look(q)
    if not due then return end
    -- The groups: what ../verbs/reserve/pick_groups.lua does for one service. `turn`: the active group with the lowest tag, by its member in
    -- GROUPS_BY_PLACE. `newcomer`: the group that becomes active, and `coming` its place. `gid`: the group that is served, and `place` where it
    -- goes.
    local UNLIMITED = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- the limiter in the row of a group that has not used one
    local gid, place, turn, newcomer, coming, last_tag, ungrouped
    if has_groups then
        local let
        last_tag, ungrouped, let = unp('>I7I7I7', row, 40)
        if now + 1 < let then return end
        -- Groups that earlier settings blocked, and those whose state can be forgotten, are for the general path.
        local from, to = '[' .. q, '(' .. q
        if 1 < version and call('ZRANGEBYLEX', $GROUPS_BY_PLACE, from .. 'b', to .. 'b' .. pack('>I7', version), 'LIMIT', 0, 1)[1] then return end
        local some, at, beside = call('ZRANGEBYLEX', $GROUPS_BY_PLACE, from .. 'g', to .. 'x', 'LIMIT', 0, 4), 1, nil
        local kind = some[1] and sub(some[1], 4, 4)
        if kind and kind ~= 'r' and kind ~= 'w' then
            -- A state that can be forgotten later, or jobs of a concurrency key.
            if kind == 'g' and (#some[1] ~= 27 or unp('>I7', some[1], 5) <= now) then return end
            some = call('ZRANGEBYLEX', $GROUPS_BY_PLACE, from .. 'r', to .. 'x', 'LIMIT', 0, 4)
        end
        if some[1] and sub(some[1], 4, 4) == 'r' then turn, at = some[1], 2 end
        if turn and some[2] and sub(some[2], 4, 4) == 'r' then beside, at = some[2], 3 end
        local waits, behind = some[at], some[at + 1]
        if beside and waits and sub(waits, 4, 4) == 'r' then
            -- More active groups hide those that wait.
            some = call('ZRANGEBYLEX', $GROUPS_BY_PLACE, from .. 'w', to .. 'x', 'LIMIT', 0, 2)
            waits, behind = some[1], some[2]
        end
        if turn and #turn ~= 27 or waits and #waits ~= 27 or behind and #behind ~= 27 then return end
        local tag, opens = turn and unp('>I7', turn, 5), waits and unp('>I7', waits, 5) or $NEVER
        if opens <= now then
            newcomer, opens = waits, behind and unp('>I7', behind, 5) or $NEVER
            local next = last_tag + $STRIDE - 1
            -- Several at once; or their order is that of their digests.
            if opens <= now or next == tag then return end
            -- Two are active now, if one was: the other one stays beside the one that is served.
            coming, beside = 'r' .. pack('>I7', next), turn
            if not tag or next < tag then turn, tag = newcomer, next end
        end
        -- A group that has used a limiter is for the general path.
        if turn or acked_gid then
            local of = call('HMGET', $GROUPS, q .. (acked_gid or ''), q .. sub(turn or '', 12), q .. sub(newcomer or '', 12))
            if turn and of[2] ~= sub(turn, 4, 11) .. UNLIMITED or newcomer and of[3] ~= sub(newcomer, 4, 11) .. UNLIMITED then return end
            local ended = acked_gid and of[1]
            if ended then
                -- Without limits, the end of a run moves no group: an active one has a due job, because `let` shows no step of the clock.
                local kind = sub(ended, 1, 1)
                if sub(ended, 9) ~= UNLIMITED or kind ~= 'w' and kind ~= 'r' then return end
            end
        end
        ungrouped = member and (0 < ungrouped and ungrouped or last_tag + $STRIDE - 1) or 0
        if not turn then
            if now < due then ungrouped = 0 end
            due = math.min(due, opens)
        elseif member and ungrouped <= tag then
            last_tag, ungrouped, due = ungrouped, due <= now and ungrouped + $STRIDE or 0, now
        else
            gid, last_tag = sub(turn, 12), tag
            local one, first = look(q .. char($GROUPED) .. gid)
            if not one then return end
            place = first <= now and 'r' .. pack('>I7', tag + $STRIDE) or first < $NEVER and 'w' .. pack('>I7', first)
            due = (member or beside or first <= now) and now or math.min(due, first, opens)
            member = one
        end
    end
    if due <= now and 1 < wanted then return end
    local id, rec, run, payload
    if member then
        local id_at = gid and 28 or 11
        id = sub(member, id_at, id_at + 15)
        rec = call('HGET', $RECORDS, id)
        if #member ~= id_at + 16 or byte(member, id_at + 16) ~= 0 or not rec or #rec < 26 or acks == 1 and id == acked then return end
        -- Allowed: a time (1), a lease (4) and attempts (8) of its own, a unique key (16), the group (64), a payload that is stored apart (128).
        local flags, scope, _, skip = unp('>BBc3I3', rec)
        if 32 <= flags % 64 or 2 <= flags % 4 or #rec < skip or (64 <= flags % 128) ~= (gid ~= nil) then return end
        local bytes, at, own, held, digests = #rec - skip, 15 + flags % 2 * 6, false, 0, ''
        if 128 <= flags then
            if bytes ~= 0 or skip < at + 7 then return end
            bytes, at = unp('>I4', rec, at)
            payload = call('HGET', $PAYLOADS, id) or ''
        end
        if 4 <= flags % 8 then own, at = unp('>I4', rec, at) end
        if 8 <= flags % 16 then at = at + 2 end
        if 16 <= flags % 32 then
            if 16 <= scope or skip < at + 22 then return end
            held, digests, at = 4, sub(rec, at, at + 15), at + 23
        end
        if gid then
            if sub(rec, at, at + 15) ~= gid or skip < at + 15 then return end
            held, digests = held + 16, digests .. gid
        end
        local asked = tonumber(ARGV[from + 3])
        if lasts == 0 then lasts = $LEASE_DEFAULT end
        lasts = own or 0 < asked and asked or lasts
        fence = math.max(fence, now * 1000) + 1
        local ends = math.min(now + lasts, $INSTANT_MAX_MS)
        till = math.min(till, ends)
        run = pack('>I8c3I6BI4I6I4', fence, q, ends, held, bytes, now, lasts) .. digests .. ARGV[from + 4]
    end

    -- From here on, nothing is left to the general path. The first write lets a full server go on: see drains() in ../base.lua.
    local function text(n) return string.format('%.0f', n) end
    local time = pack('>I6', now)
    if acks == 1 then
        call('HDEL', $RUNS, acked)
        call('ZREM', $LEASES, acked_place .. acked)
        if freed then call('HDEL', $UNIQUE_KEYS, freed) end
        if acked_gid then call('ZREM', $RUNNING_KEYS, q .. acked_gid .. acked) end
        if keeps then
            call('HSET', $HISTORIES, acked, char(1 + 32, $DONE) .. time)
            call('ZADD', $ENDED_JOBS, '0', q .. char($DONE) .. time .. acked .. pack('>I4', bytes))
            call('HSET', $COUNTERS, q .. 'b', text(counters[1] - bytes), q .. char($DONE), text(counters[2] + bytes), q .. 'e', text(counters[3] - 1))
        else
            call('HDEL', $RECORDS, acked)
            if $WITHIN_RECORD_MAX < bytes then call('HDEL', $PAYLOADS, acked) end
            -- As add() in ../base.lua.
            if type(redis.pcall('HINCRBY', $COUNTERS, q .. 'b', -bytes)) ~= 'number' then call('HSET', $COUNTERS, q .. 'b', -bytes) end
        end
    elseif not member then
        call('ZREM', $LEASES, '')
    end
    local given = ''
    if member then
        call('ZREM', $TIMELINE, member)
        call('HSET', $RUNS, id, run)
        call('ZADD', $LEASES, '0', sub(run, 9, 17) .. id)
        wanted, given = wanted - 1, pack('>I8', fence) .. id
    end
    if newcomer and not (gid and newcomer == turn) then
        local of = sub(newcomer, 12)
        call('ZREM', $GROUPS_BY_PLACE, newcomer)
        call('ZADD', $GROUPS_BY_PLACE, '0', q .. coming .. of)
        call('HSET', $GROUPS, q .. of, coming .. UNLIMITED)
    end
    if gid then
        call('ZADD', $RUNNING_KEYS, '0', q .. gid .. id)
        call('ZREM', $GROUPS_BY_PLACE, turn, q .. 'd\0' .. sub(member, 22, 27) .. id)
        if place then
            call('ZADD', $GROUPS_BY_PLACE, '0', q .. place .. gid)
            call('HSET', $GROUPS, q .. gid, place .. UNLIMITED)
        else
            call('HDEL', $GROUPS, q .. gid)
        end
    end
    call('HSET', $CALLS, key, pack('>I8', number) .. time .. given)
    call('HSET', $STATE, 'turn', pack('>I7I7I7I7I4I2', now + 1, grace, fence, wide, epoch, format) .. silences)

    -- When a call is needed for these leases: see watch_of() in ../base.lua.
    if now < due and till < $NEVER then
        local own, ids, rows = run and sub(run, 9, 17) .. id, {}, {}
        others[$WATCHED_MAX + 1] = nil
        if own and #others == $WATCHED_MAX then
            if own < others[#others] then others[#others] = nil else own = nil end
        end
        for i, other in ipairs(others) do ids[i] = sub(other, 10) end
        if 0 < #ids then rows = call('HMGET', $RUNS, unpack(ids)) end
        till = own and now + math.floor(2 * lasts / 5) or $NEVER
        for i = 1, #ids do
            local length = rows[i] and 32 <= #rows[i] and unp('>I4', rows[i], 29) or 0
            till = math.min(till, over_at(silences, unp('>I6', others[i], 4), length), now + math.floor(2 * length / 5))
        end
    end
    -- Which process wakes for the queue next.
    local notification, held, is_hinted = KEYS[$NOTIFICATIONS], ARGV[from + 9], now < spare or has_groups
    if now < spare then spare = 0 end
    local at = math.min(due, till)
    local is_news, is_held, is_mine = now < at and at < $NEVER and (watch <= now or at < watch), false, held == '-'
    if now < at and now < watch and held ~= '-' then
        for j = 1, #held, 7 do is_held = is_held or unp('>I7', held, j) == watch end
    end
    if at <= now then
        if due <= now then
            spare, is_hinted = now + $SPARE, true
            call('ZADD', notification, 'LT', 0, 'r', text(spare), 's')
        end
    elseif held ~= '-' and 0 < wanted and (is_held or is_news) and (due <= till or is_held and watch == at) then
        is_mine = true
        if watch ~= at then
            watch, is_hinted = at, true
            call('ZADD', notification, text(at + $SPARE), 'u')
        end
    elseif is_news or is_held or member and held == '-' and due < $NEVER then
        watch, is_hinted = at, true
        call('ZADD', notification, text(at), 't', text(at + $SPARE), 'u')
    end
    if is_hinted then
        local rest = has_groups and sub(row, 22, 39) .. pack('>I7I7I7', last_tag, ungrouped, now + 1) or sub(row, 22)
        call('HSET', $SETTINGS, q .. 'w', pack('>I7I7I7', upkeep, watch, spare) .. rest)
    end
    local next, wakes = '', pack('>I7B', $NEVER, 0)
    if at < $NEVER then next, wakes = text(at), pack('>I7B', at, is_mine and 1 or 0) end
    local answer = {text(now), into, epoch, ''}
    local filled = 4
    if 2 < from then
        answer[5], filled = acks == 1 and char($DONE) or '', 5
    end
    answer[filled + 1], answer[filled + 2], answer[filled + 3] = '', next, wakes
    if member then answer[filled + 4], answer[filled + 5], answer[filled + 6], answer[filled + 7] = id, run, rec, payload end
    return answer
end
