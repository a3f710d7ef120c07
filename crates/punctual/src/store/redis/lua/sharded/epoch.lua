-- epoch: informs a shard of a change of the layout. From then on it accepts no jobs of an earlier epoch, and callers
-- get the new one.
-- KEYS: common.
-- ARGV: now; the epoch, or 0 only to read. If all shards know that epoch, also the layout, its pins, and which store it
--   is. These are for programs that start while shard 0 is away, and for restore.lua.
-- Answers: the epoch before; how many jobs the shard holds; how many remembered ids and unique keys it holds; how many
--   groups it knows; 1 if the search of misplaced.lua is over in this epoch, else 0.
-- Cost: O(1).
local epoch = tonumber(ARGV[2])
local before = shard.epoch
if before < epoch then
    drains()
    shard.epoch = epoch
    put_shard()
end
-- A copy belongs to the epoch that the shard is in. So the latest copy is the one with the highest epoch.
if ARGV[3] and epoch == shard.epoch then
    call('HSET', $STATE, 'layout', ARGV[3], 'pins', ARGV[4], 'identity', ARGV[5])
end
return {before, call('HLEN', $RECORDS), call('HLEN', $REMEMBERED) + call('HLEN', $UNIQUE_KEYS), call('HLEN', $GROUPS),
    call('HGET', $STATE, 'search') == pack('>I4', shard.epoch) .. 'c' and 1 or 0}
