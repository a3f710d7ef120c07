-- Purpose: takes entries that are durable elsewhere out of a sorted set, with their payloads; one that changed since it was
--   looked at stays, and so does a payload whose member stands in another set of this import, too. The open batch is closed and a new
--   round begins: what is put back later is another entry.
-- KEYS: 1 the state; 2 the sorted set; 3 the open batch; where payloads are in a hash, that hash; then, where payloads stand apart, the
--   other sets.
-- ARGV: 1 the caller's token; 2 the round that look answered; 3 where payloads are; 4 and 5 what a payload's key has before and
--   behind the member; then of each entry: member, score, the payload's SHA-1.
-- Answer: a letter an entry: 't' taken out, 'c' changed, 'g' gone already.
-- Cost: four commands an entry, and one for each other set.
local owner, round = unpack(redis.call('HMGET', KEYS[1], 'owner', 'taken'))
if owner ~= ARGV[1] or round ~= ARGV[2] then return redis.error_reply('TAKENOVER by another import') end
local where = ARGV[3]

local function payload_of(member)
    if where == 'hash' then return redis.call('HGET', KEYS[4], member) end
    return redis.pcall('GET', ARGV[4] .. member .. ARGV[5])
end

local function is_shared(member)
    for i = where == 'hash' and 5 or 4, #KEYS do
        if redis.call('ZSCORE', KEYS[i], member) then return true end
    end
    return false
end

local function remove(member)
    redis.call('ZREM', KEYS[2], member)
    if where == 'member' or is_shared(member) then return end
    if where == 'hash' then
        redis.call('HDEL', KEYS[4], member)
    else
        redis.call('UNLINK', ARGV[4] .. member .. ARGV[5])
    end
end

local letters = {}
for i = 6, #ARGV, 3 do
    local score, letter = redis.call('ZSCORE', KEYS[2], ARGV[i]), 't'
    if not score then
        letter = 'g'
    elseif tonumber(score) ~= tonumber(ARGV[i + 1]) then
        letter = 'c'
    elseif where ~= 'member' then
        local payload = payload_of(ARGV[i])
        if type(payload) ~= 'string' or redis.sha1hex(payload) ~= ARGV[i + 2] then letter = 'c' end
    end
    letters[#letters + 1] = letter
end

-- Nothing is rolled back: who may not remove is refused here, by the removal of nothing (nobody's entry is a token), and who may not
-- count is so before anything is gone.
remove(ARGV[1])
redis.call('HINCRBY', KEYS[1], 'taken', 1)
for at, letter in ipairs(letters) do
    if letter == 't' then remove(ARGV[3 + 3 * at]) end
end
redis.call('UNLINK', KEYS[3])
return table.concat(letters)
