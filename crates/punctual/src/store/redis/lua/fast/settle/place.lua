-- A step of settle_one(): what a reserve writes.
local given = ''
if member then
    call('ZREM', $TIMELINE, member)
    call('HSET', $RUNS, id, run)
    call('ZADD', $LEASES, '0', sub(run, 9, 17) .. id)
    if concurrency_key then call('ZADD', $RUNNING_KEYS, '0', q .. concurrency_key .. id) end
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
