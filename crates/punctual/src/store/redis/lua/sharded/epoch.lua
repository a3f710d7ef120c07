-- epoch: tells a shard of a change of the layout: from then on it takes no jobs of an earlier one, and callers hear of it.
-- KEYS: common. ARGV: now, epoch, or 0 to look only; and where all shards know of that epoch, the layout, its pins, and which store
-- it is, for programs that start while shard 0 is away. Answers: the epoch before, how many jobs it holds, and what else is
-- kept there: remembered ids and unique keys; how many groups it knows; 1 if the search of misplaced.lua is over in this epoch.
-- Cost: O(1).
local epoch = tonumber(ARGV[2])
local before = shard.epoch
if before < epoch then
    drains()
    shard.epoch = epoch
    put_turn()
end
-- A copy is of the epoch that the shard is in: so the latest is the one of the highest epoch.
if ARGV[3] and epoch == shard.epoch then
    call('HSET', STATE, 'layout', ARGV[3], 'pins', ARGV[4], 'identity', ARGV[5])
end
return {before, call('HLEN', RECORDS), call('HLEN', REMEMBERED) + call('HLEN', UNIQUE_KEYS), call('HLEN', GROUPS),
    call('HGET', STATE, 'search') == pack('>I4', shard.epoch) .. 'c' and 1 or 0}
