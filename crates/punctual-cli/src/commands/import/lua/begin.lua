-- Purpose: makes its caller the one importer of a source; whoever was so before can take nothing off any more.
-- KEYS: 1 the state of the import, a hash; 2 what is there while entries are on their way: the open batch, or the list aside.
-- ARGV: 1 the caller's token; 2 what becomes of the entries, as text; 3 a run, for where there is none.
-- Answer: {'begun', run}, or {'other', what the import before it made of the entries that are on their way}.
-- Cost: four commands.
local how, run = unpack(redis.call('HMGET', KEYS[1], 'how', 'run'))
if how and how ~= ARGV[2] and redis.call('EXISTS', KEYS[2]) == 1 then return {'other', how} end

if not run then
    run = ARGV[3]
    redis.call('HSET', KEYS[1], 'run', run, 'taken', '0')
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'how', ARGV[2])
return {'begun', run}
