-- layout: replaces the layout of the store if it is still the one that the caller saw.
-- KEYS: common, of shard 0. ARGV: now, row seen or '', row. Answers: 1 or 0. Cost: O(1).
if (call('HGET', S, 'layout') or '') ~= ARGV[2] then return 0 end
call('HSET', S, 'layout', ARGV[3])
return 1
