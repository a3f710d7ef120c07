-- Purpose: takes elements that are durable elsewhere off a list, and counts them in the same step, so that the place of each of the
--   others stays what it is. Those that were refused go to a list of their own. What may be refused comes first, since nothing is
--   rolled back: what goes off the list stands elsewhere already.
-- KEYS: 1 the state; 2 the list; 3 the list of the refused; 4 where payloads are in a hash, the list of ids whose payloads go last.
-- ARGV: 1 the caller's token; 2 how many were taken off before, as peek answered; 3 the end that is popped from; 4 how many go now;
--   then the places of the refused among these, from 0.
-- Answer: 'OK'.
-- Cost: up to five commands, two for each that was refused, and one for each id.
local owner, taken = unpack(redis.call('HMGET', KEYS[1], 'owner', 'taken'))
if owner ~= ARGV[1] or taken ~= ARGV[2] then return redis.error_reply('TAKENOVER by another import') end
local is_left, n = ARGV[3] == 'left', tonumber(ARGV[4])

local is_refused, refused, ids = {}, {}, {}
for i = 5, #ARGV do
    local at = tonumber(ARGV[i])
    is_refused[at] = true
    refused[#refused + 1] = redis.call('LINDEX', KEYS[2], is_left and at or -at - 1)
end
if KEYS[4] then
    local all = is_left and redis.call('LRANGE', KEYS[2], 0, n - 1) or redis.call('LRANGE', KEYS[2], -n, -1)
    for i, id in ipairs(all) do
        if not is_refused[is_left and i - 1 or #all - i] then ids[#ids + 1] = id end
    end
end

-- Who may not trim or count is refused here, where nothing is trimmed or counted: later, the refused would be written once more.
redis.call('LTRIM', KEYS[2], 0, -1)
if refused[1] then redis.call('HINCRBY', KEYS[1], 'taken', 0) end
for _, id in ipairs(ids) do redis.call('RPUSH', KEYS[4], id) end
for _, element in ipairs(refused) do redis.call('RPUSH', KEYS[3], element) end
redis.call('HINCRBY', KEYS[1], 'taken', n)
if is_left then redis.call('LTRIM', KEYS[2], n, -1) else redis.call('LTRIM', KEYS[2], 0, -n - 1) end
return 'OK'
