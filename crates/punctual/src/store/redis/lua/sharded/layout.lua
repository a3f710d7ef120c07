-- layout: replaces the layout of the store if it is still the one that the caller saw.
-- KEYS: common, of shard 0. ARGV: now, row seen or '', row, and pins if they change. Answers: 1 or 0. Cost: O(1).
if (call('HGET', STATE, 'layout') or '') ~= ARGV[2] then return 0 end
-- A full server, too, must let a change come to its end.
drains()
if shard.is_new then put_turn() end
call('HSET', STATE, 'layout', ARGV[3])
if ARGV[4] then call('HSET', STATE, 'pins', ARGV[4]) end
return 1
