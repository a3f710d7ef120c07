-- Purpose: makes its caller the one importer of a source; whoever was so before can take nothing off any more.
-- KEYS: 1 the state of the import, a hash.
-- ARGV: 1 the caller's token; 2 what becomes of the entries, as text; 3 a run, for where there is none.
-- Answer: {'begun', run}, or {'other', what the unfinished import before it made of the entries}.
-- Cost: three commands.
local how, run = unpack(redis.call('HMGET', KEYS[1], 'how', 'run'))
if how and how ~= ARGV[2] then return {'other', how} end

if not run then
    run = ARGV[3]
    redis.call('HSET', KEYS[1], 'how', ARGV[2], 'run', run, 'taken', '0')
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return {'begun', run}
