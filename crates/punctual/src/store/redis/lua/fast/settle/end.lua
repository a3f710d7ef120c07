-- A step of settle_one(): what the ack writes.
-- From here on, nothing is left to the general path. The first write lets a full server go on: see drains() in ../../base.lua.
local time = pack('>I6', now)
if acks == 1 then
    call('HDEL', $RUNS, acked)
    call('ZREM', $LEASES, acked_place .. acked)
    if freed then call('HDEL', $UNIQUE_KEYS, freed) end
    if acked_key then
        call('ZREM', $RUNNING_KEYS, q .. acked_key .. acked)
        if not acked_gid then call('ZREM', $GROUPS_BY_PLACE, q .. 'k' .. acked_key .. acked) end
    end
    if acked_gid then call('ZREM', $RUNNING_KEYS, q .. acked_gid .. acked) end
    if counters then
        call('HSET', $HISTORIES, acked, char(1 + 32, $DONE) .. time)
        call('ZADD', $ENDED_JOBS, '0', q .. char($DONE) .. time .. acked .. pack('>I4', bytes))
        call('HSET', $COUNTERS, q .. 'b', text(counters[1] - bytes), q .. char($DONE), text(counters[2] + bytes), q .. 'e', text(counters[3] - 1))
    else
        call('HDEL', $RECORDS, acked)
        if $WITHIN_RECORD_MAX < bytes then call('HDEL', $PAYLOADS, acked) end
        -- As add() in ../../base.lua.
        if type(redis.pcall('HINCRBY', $COUNTERS, q .. 'b', -bytes)) ~= 'number' then call('HSET', $COUNTERS, q .. 'b', -bytes) end
    end
elseif not member then
    call('ZREM', $LEASES, '')
end
