-- identity: which store it is. The first one stays. KEYS: common, of shard 0. ARGV: now, one for a store that has none.
-- Answers: the identity. Cost: O(1).
local identity = call('HGET', STATE, 'identity')
if not identity then
    -- A full server, too, must let jobs leave.
    drains()
    if shard.is_new then put_turn() end
    identity = ARGV[2]
    call('HSET', STATE, 'identity', identity)
end
return {identity}
