-- Purpose: moves a list aside in one step, where those who go on writing to it don't come; before it, what its consumers have
--   popped and not acknowledged. Does nothing while something is aside. What may be refused comes before the first removal, since
--   nothing is rolled back: what was taken off stands aside already.
-- KEYS: 1 the state; 2 the list aside; 3 the list; 4 where there is one, the backup.
-- ARGV: 1 the caller's token; 2 the end that is popped from: 'left' or 'right'; 3 most entries of the backup; 4 so many bytes of them
--   end it, too.
-- Answer: 1 if the list was moved, so that what is aside is all there is; else 0.
-- Cost: one RENAME, or three commands for up to eight entries of the backup each.
local SLICE_MAX = 8

if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return redis.error_reply('TAKENOVER by another import') end
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end

local backup, most, bytes_max = KEYS[4], tonumber(ARGV[3]), tonumber(ARGV[4])
local type_of = backup and redis.call('TYPE', backup).ok
local removal = ({zset = 'ZREM', set = 'SREM', hash = 'HDEL', list = 'LTRIM'})[type_of]

local function read(n)
    if type_of == 'zset' then return redis.call('ZRANGE', backup, 0, n - 1) end
    if type_of == 'set' then return redis.call('SRANDMEMBER', backup, n) end
    if type_of == 'hash' then return redis.call('HRANDFIELD', backup, n) end
    return redis.call('LRANGE', backup, 0, n - 1)
end

local function remove(some)
    if type_of == 'list' then return redis.call('LTRIM', backup, #some, -1) end
    return redis.call(removal, backup, unpack(some))
end

if removal then
    -- Who may not remove is refused here, by the removal of nothing: nobody's entry is a token.
    remove(type_of == 'list' and {} or {ARGV[1]})
    local entries, bytes, slice = 0, 0, 1
    while entries < most and bytes < bytes_max do
        local some = read(math.min(slice, most - entries))
        if not some[1] then break end
        redis.call(ARGV[2] == 'left' and 'RPUSH' or 'LPUSH', KEYS[2], unpack(some))
        remove(some)
        for _, entry in ipairs(some) do bytes = bytes + #entry end
        entries, slice = entries + #some, math.min(2 * slice, SLICE_MAX)
    end
    return 0
end
if redis.call('EXISTS', KEYS[3]) == 0 then return 0 end
redis.call('RENAME', KEYS[3], KEYS[2])
return 1
