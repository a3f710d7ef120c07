-- identity: returns which store it is. The first identity stays.
-- KEYS: common, of shard 0.
-- ARGV: now, an identity for a store that has none.
-- Answers: the identity.
-- Cost: O(1).
local identity = call('HGET', $STATE, 'identity')
if not identity then
    -- Jobs must be able to leave a full server, too.
    drains()
    if shard.is_new then put_shard() end
    identity = ARGV[2]
    call('HSET', $STATE, 'identity', identity)
end
return {identity}
