-- Purpose: ends an import: its state goes once nothing is on its way. Payloads in a hash go only now, since an id may have stood in the
--   list more than once, and only while it stands nowhere any more; else their ids stay for the next import.
-- KEYS: 1 the state; of a list besides: 2 the list aside; with payloads in a hash: 3 the list, 4 the ids whose payloads go, 5 the
--   hash, and 6 where there is one, the backup.
-- ARGV: 1 the caller's token; 2 most ids.
-- Answer: 'finished'; 'kept', which is the same, but ids stay, since something came meanwhile; 'more' ids to go; or 'again', since
--   something is aside.
-- Cost: five commands and one HDEL of so many ids.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return redis.error_reply('TAKENOVER by another import') end
if KEYS[2] and 0 < redis.call('EXISTS', KEYS[2]) then return 'again' end

local ids, is_quiet = {}, true
if KEYS[4] then
    ids = redis.call('LRANGE', KEYS[4], 0, tonumber(ARGV[2]) - 1)
    is_quiet = redis.call('EXISTS', KEYS[3], KEYS[6] or KEYS[3]) == 0
end

if ids[1] and is_quiet then
    redis.call('HDEL', KEYS[5], unpack(ids))
    redis.call('LTRIM', KEYS[4], #ids, -1)
    return 'more'
end
redis.call('DEL', KEYS[1])
return ids[1] and 'kept' or 'finished'
