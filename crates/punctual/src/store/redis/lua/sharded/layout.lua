-- layout: replaces the layout of the store, if it is still the one that the caller read.
-- KEYS: common, of shard 0.
-- ARGV: now, the row as read or '', the new row, and the pins if they change.
-- Answers: 1 or 0.
-- Cost: O(1).
if (call('HGET', $STATE, 'layout') or '') ~= ARGV[2] then return 0 end
-- A change must be able to finish on a full server, too.
drains()
if shard.is_new then put_shard() end
call('HSET', $STATE, 'layout', ARGV[3])
if ARGV[4] then call('HSET', $STATE, 'pins', ARGV[4]) end
return 1
