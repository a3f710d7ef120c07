-- A step of settle_one(): the ack, its queue, and the call.
-- Upkeep that belongs to no queue is for the general path.
if wide <= now then return end
-- The run of the acked job. Its flags show keys, a group or a history. Any verdict but a bare ack is longer than a fence.
local acked, acked_run, freed, acked_key, acked_gid = ARGV[3], nil, nil, nil, nil
if acks == 1 then
    acked_run = call('HGET', $RUNS, acked)
    if not acked_run or #acked_run < 32 or sub(acked_run, 1, 8) ~= ARGV[4] then return end
    local flags = byte(acked_run, 18)
    if 32 <= flags or 2 <= flags % 4 then return end
    local at = 4 <= flags % 8 and 49 or 33
    if 8 <= flags % 16 then acked_key, at = sub(acked_run, at, at + 15), at + 16 end
    if 16 <= flags then acked_gid = sub(acked_run, at, at + 15) end
    if #(acked_gid or acked_key or acked) < 16 then return end -- something else cut it short
    if 4 <= flags % 8 then
        -- The row of a window is left to the general path.
        local holder = call('HGET', $UNIQUE_KEYS, sub(acked_run, 33, 48))
        if holder and sub(holder, 17) ~= '\0\0\0\0\0\0' then return end
        freed = holder and sub(holder, 1, 16) == acked and sub(acked_run, 33, 48)
    end
end
-- The queue: neither paused nor last in, first out; no limits. A row of 60 bytes is that of a queue which had groups.
local q = reserves and call('HGET', $QUEUES, ARGV[from + 6]) or not reserves and sub(acked_run, 9, 11)
if not q or #q ~= 3 then return end
local rows = call('HMGET', $SETTINGS, q, q .. 'w')
local stored, row = rows[1], rows[2]
if not stored or #stored < 133 or not row then return end
local settings, version, lasts = unp('>BI4I4', stored)
local has_groups = #row == 60
if has_groups and not reserves then return end
if 64 <= settings or 0 < settings % 4 or not has_groups and (acked_gid or #row ~= 21 and #row ~= 39) then return end
local upkeep, watch, spare = unp('>I7I7I7', row)
if upkeep <= now or 21 < #row and now < unp('>I7', row, 22) then return end
-- Mostly, no job of any key is blocked.
local is_any
if acked_key then
    is_any = is_awaited(q, '')
    if is_any and is_awaited(q, acked_key) then return end
end
-- A call that is no repetition, and not of a clock that went back: see put_call() in ../../base.lua.
local key, number, wanted
if reserves then
    key, number = ARGV[from] .. 'r', tonumber(ARGV[from + 1])
    local last = call('HGET', $CALLS, key)
    if not last or #last < 14 or number <= unp('>I8', last) or now < unp('>I6', last, 9) then return end
    wanted = math.min(tonumber(ARGV[from + 2]), tonumber(ARGV[from + 8]))
    if wanted < 1 then return end
end

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


-- What the steps of the reserve find: see there.
local others, till, member, due, first
local gid, place, turn, newcomer, coming, last_tag, ungrouped
local id, rec, run, payload, concurrency_key
local UNLIMITED = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- the limiter in the row of a group that has not used one
