-- The fast path of enqueue: one plain job in a queue that exists. A plain job has no expiry and no derived id. Its unique key, if it has
-- one, is no window, and no job has it. Its group, if it has one, has no limits, and its queue had groups before. Its caller has called
-- before. Arguments and answers are those of ../verbs/enqueue.lua.
-- For any other call it returns nil before its first write, and the rest of the script answers: the general path. Both leave the
-- same keys, byte by byte, so a rule that changes there changes here.
-- Flags of a queue and lengths of rows: see queue() and read_shard() in ../base.lua.
-- Cost: O(log N), 9 to 20 commands.
local function enqueue_one()
    if #ARGV ~= 13 or ARGV[4] ~= 'o' or ARGV[7] ~= '' then return end
    local call, pack, unp, char, byte = redis.call, struct.pack, struct.unpack, string.char, string.byte
    local id, rest = ARGV[11], ARGV[13]
    local _, flags, level, kind, ms, expiry, _, _, _, skip = unp('>I2BBc1I7c1I7c1I4I3', ARGV[12])
    local is_grouped = 64 <= flags
    if expiry ~= 'n' or math.floor(byte(id, 7) / 16) == $DERIVED then return end
    local now = tonumber(ARGV[1])
    if not now then
        local t = call('TIME')
        now = t[1] * 1000 + math.floor(t[2] / 1000)
    end
    local turn = call('HGET', $STATE, 'turn')
    if not turn or #turn < 34 then return end
    local epoch, format = unp('>I4I2', turn, 29)
    if format ~= $FORMAT or tonumber(ARGV[5]) < epoch then return end
    local q = call('HGET', $QUEUES, ARGV[8])
    if not q or #q ~= 3 then return end
    local rows = call('HMGET', $SETTINGS, q, q .. 'w')
    local stored, row = rows[1], rows[2]
    if not stored or #stored < 133 or not row then return end
    local settings, version = unp('>BI4', stored)
    -- A capped queue may be full.
    if version ~= tonumber(ARGV[9]) or 4 <= settings % 8 then return end
    if #row ~= 60 and (is_grouped or #row ~= 21 and #row ~= 39) or is_grouped and 64 <= settings then return end
    local upkeep, watch, spare = unp('>I7I7I7', row)
    if upkeep == $AT_REST then return end
    local key, number = ARGV[2] .. 'e', tonumber(ARGV[3])
    -- A call that is no repetition, and not of a clock that went back: see put_call() in ../base.lua.
    local last = call('HGET', $CALLS, key)
    if not last or #last < 14 or number <= unp('>I8', last) or now < unp('>I6', last, 9) then return end
    if call('HEXISTS', $RECORDS, id) == 1 then return end
    local unique_key, concurrency_key, at = nil, nil, 1 + (4 <= flags % 8 and 4 or 0) + (8 <= flags % 16 and 2 or 0)
    if 16 <= flags % 32 then
        unique_key, at = string.sub(rest, at, at + 15), at + 23
        if 16 * $WINDOW <= level or call('HEXISTS', $UNIQUE_KEYS, unique_key) == 1 then return end
    end
    if 32 <= flags % 64 then concurrency_key, at = string.sub(rest, at, at + 15), at + 20 end

    local run_at = kind == 'a' and ms or math.min(now + ms, $INSTANT_MAX_MS)
    if run_at < now then run_at = now end
    -- Whether to notify waiting processes. A later job needs it only if it is the earliest, and nobody wakes before it. When that is
    -- so in a queue with limits, only the general path knows.
    local is_news = run_at <= now or watch <= now or run_at < watch
    -- The group, if its place changes: regroup() in ../state/groups.lua. `old`: its member there, if it has a place.
    local UNLIMITED = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- the limiter in the row of a group that has not used one
    local gid, moves, old = nil, false, nil
    if is_grouped then
        gid = string.sub(rest, at, at + 15)
        -- The clock went back: the places of groups may be wrong.
        if now + 1 < unp('>I7', row, 54) then return end
        local group = call('HGET', $GROUPS, q .. gid)
        local place, at = '', $NEVER
        if group then
            if #group ~= 26 or string.sub(group, 9) ~= UNLIMITED then return end
            place, at = unp('>c1I7', group)
            -- A blocked group has no time in its place, so only its jobs say when the first one is due.
            if place ~= 'r' and place ~= 'w' then return end
            old = q .. string.sub(group, 1, 8) .. gid
        end
        -- Without limits, a group without a place has no job in the timeline, a waiting one waits for its first job, and an active one has
        -- a due job, because `let` shows no step of the clock.
        moves = not (place == 'r' or place == 'w' and at <= run_at)
        if moves and now + $SPARE < spare then return end
        -- A later job of a group that stays is behind another one, unless both have the same time, or the queue is closed.
        if not moves and is_news and now < run_at then
            if place == 'w' and at == run_at or settings % 2 == 1 or now < unp('>I7', row, 22) then return end
            is_news = false
        end
    end
    if now < run_at and is_news and not moves then
        if 64 <= settings or #row == 60 or #row == 39 and now < unp('>I7', row, 22) then return end
        local level_at = settings % 2 == 1 and $LEVELS or 0 -- nothing is due in a paused queue
        while is_news and level_at < $LEVELS do
            -- Within a level, members are sorted by time, so the first of each level is enough.
            local first = call('ZRANGEBYLEX', $TIMELINE, '[' .. q .. char(level_at), '(' .. q .. char($LEVELS), 'LIMIT', 0, 1)[1]
            if not first then break end
            if #first < 10 then return end
            local first_at
            level_at, first_at = unp('>BI6', first, 4)
            level_at, is_news = level_at + 1, run_at <= first_at
        end
    end

    local created = pack('>I6', now)
    local times = created
    if run_at ~= now then flags, times = flags + 1, created .. pack('>I6', run_at) end
    local bytes = #rest - skip
    if $WITHIN_RECORD_MAX < bytes then
        call('HSET', $PAYLOADS, id, string.sub(rest, skip + 1))
        flags, times, rest = flags + 128, times .. pack('>I4', bytes), string.sub(rest, 1, skip)
    end
    call('HSET', $RECORDS, id, pack('>BB', flags, level) .. q .. pack('>I3', 8 + #times + skip) .. times .. rest)
    if unique_key then call('HSET', $UNIQUE_KEYS, unique_key, id .. pack('>I6', 0)) end
    local member = pack('>BI6', level % 16, run_at) .. id .. '\0'
    if is_grouped then
        local place = 'w' .. pack('>I7', run_at)
        member = char($GROUPED) .. gid .. member
        if not moves then
            call('ZADD', $GROUPS_BY_PLACE, '0', q .. 'd' .. pack('>I7', run_at) .. id)
        else
            if old then call('ZREM', $GROUPS_BY_PLACE, old) end
            call('ZADD', $GROUPS_BY_PLACE, '0', q .. 'd' .. pack('>I7', run_at) .. id, '0', q .. place .. gid)
            call('HSET', $GROUPS, q .. gid, place .. UNLIMITED)
        end
    elseif concurrency_key then
        call('ZADD', $GROUPS_BY_PLACE, '0', q .. 'k' .. concurrency_key .. id)
    end
    call('ZADD', $TIMELINE, '0', q .. member)
    call('HSET', $CALLS, key, pack('>I8', number) .. created)
    -- As add() in ../base.lua.
    if 0 < bytes and type(redis.pcall('HINCRBY', $COUNTERS, q .. 'b', bytes)) ~= 'number' then call('HSET', $COUNTERS, q .. 'b', bytes) end
    if is_news then
        local notification = KEYS[$NOTIFICATIONS]
        if now < run_at then
            watch = run_at
            call('ZADD', notification, string.format('%.0f', run_at), 't', string.format('%.0f', run_at + $SPARE), 'u')
        elseif spare <= now then
            spare = now + $SPARE
            call('ZADD', notification, 'LT', 0, 'r', string.format('%.0f', spare), 's')
        else
            call('ZADD', notification, 'LT', 0, 'r')
            return {'I' .. pack('>I6', run_at)}
        end
        call('HSET', $SETTINGS, q .. 'w', pack('>I7I7I7', upkeep, watch, spare) .. string.sub(row, 22))
    end
    return {'I' .. pack('>I6', run_at)}
end
