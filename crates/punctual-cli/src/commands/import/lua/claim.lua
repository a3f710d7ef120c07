-- Purpose: moves a list aside in one step, where those who go on writing to it don't come; before it, what its consumers have
--   popped and not acknowledged. Does nothing while something is aside.
-- KEYS: 1 the state; 2 the list aside; 3 the list; 4 where there is one, the backup.
-- ARGV: 1 the caller's token; 2 the end that is popped from: 'left' or 'right'; 3 most entries of the backup.
-- Answer: 1 if the list was moved, so that what is aside is all there is; else 0.
-- Cost: one RENAME, or three commands for up to so many entries of the backup.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return redis.error_reply('TAKENOVER by another import') end
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end

local backup, most = KEYS[4], tonumber(ARGV[3])
local type_of = backup and redis.call('TYPE', backup).ok
local popped = {}
if type_of == 'zset' then
    local pairs_of = redis.call('ZPOPMIN', backup, most)
    for i = 1, #pairs_of, 2 do popped[#popped + 1] = pairs_of[i] end
elseif type_of == 'set' then
    popped = redis.call('SPOP', backup, most)
elseif type_of == 'hash' then
    popped = redis.call('HRANDFIELD', backup, most)
    redis.call('HDEL', backup, unpack(popped))
elseif type_of == 'list' then
    popped = redis.call('LRANGE', backup, 0, most - 1)
    redis.call('LTRIM', backup, most, -1)
end
if popped[1] then
    redis.call(ARGV[2] == 'left' and 'RPUSH' or 'LPUSH', KEYS[2], unpack(popped))
    return 0
end
if redis.call('EXISTS', KEYS[3]) == 0 then return 0 end
redis.call('RENAME', KEYS[3], KEYS[2])
return 1
