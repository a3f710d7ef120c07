-- Purpose: reads the first entries of a sorted set with their payloads, and notes them as the open batch of this round. While a batch is
--   open, which is so after a kill, it reads those of it that are unchanged, and no others: they may be jobs already, by this round's ids.
-- KEYS: 1 the state; 2 the sorted set; 3 the open batch, a hash; 4 where payloads are in a hash, that hash.
-- ARGV: 1 the caller's token, '' for who only looks, and opens none; 2 entries to pass over; 3 most entries; 4 most bytes, one larger entry apart;
--   5 the largest payload; 6 where payloads are: 'member', 'key' or 'hash'; 7 and 8 what a payload's key has before and behind the
--   member.
-- Answer: {rounds so far, '1' where there may be more, else '0', then of each entry: member, score, payload ('' where it is the
--   member), the payload's SHA-1 ('' likewise), and what is wrong with it: '', 'missing', 'type' or its size, which is too large}.
-- Cost: two commands an entry, and one for up to eight. Keys of payloads are put together here: for one server, not for a cluster.
local SLICE_MAX, SHOWN = 8, 50

local owner, round = unpack(redis.call('HMGET', KEYS[1], 'owner', 'taken'))
if ARGV[1] ~= '' and owner ~= ARGV[1] then return redis.error_reply('TAKENOVER by another import') end
local skip, most, bytes_max, largest = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local where = ARGV[6]

local function size_of(member)
    if where == 'member' then return #member end
    if where == 'hash' then return redis.call('HSTRLEN', KEYS[4], member) end
    return redis.pcall('STRLEN', ARGV[7] .. member .. ARGV[8])
end

local function payload_of(member)
    if where == 'hash' then return redis.call('HGET', KEYS[4], member) end
    return redis.pcall('GET', ARGV[7] .. member .. ARGV[8])
end

local answer, opened, bytes, entries = {round or '0', '0'}, {}, 0, 0
local function add(member, score, payload, digest, wrong)
    for _, part in ipairs({member, score, payload, digest, wrong}) do answer[#answer + 1] = part end
    bytes, entries = bytes + #member + #payload, entries + 1
    if wrong == '' then
        opened[#opened + 1] = member
        opened[#opened + 1] = score .. ' ' .. digest
    end
end

local open = ARGV[1] ~= '' and redis.call('HGETALL', KEYS[3]) or {}
for i = 1, #open, 2 do
    local member, score, digest = open[i], open[i + 1]:match('^(%S+) (.*)$')
    local now = redis.call('ZSCORE', KEYS[2], member)
    if now and tonumber(now) == tonumber(score) then
        local payload = where ~= 'member' and payload_of(member)
        if where == 'member' then
            add(member, score, '', '', '')
        elseif type(payload) == 'string' and redis.sha1hex(payload) == digest then
            add(member, score, payload, digest, '')
        end
    end
end
if open[1] then
    answer[2] = '1'
    return answer
end

local function note()
    if ARGV[1] ~= '' and opened[1] then redis.call('HSET', KEYS[3], unpack(opened)) end
    return answer
end

-- The length of a member is known when it was read: so few are read at once, and at first one.
local n = 1
while true do
    local from = skip + entries
    local slice = redis.call('ZRANGE', KEYS[2], from, from + n - 1, 'WITHSCORES')
    if not slice[1] then return note() end
    n = math.min(2 * n, SLICE_MAX)
    for i = 1, #slice, 2 do
        local member, score = slice[i], slice[i + 1]
        local size = size_of(member)
        local is_other = type(size) == 'table'
        local room = #member + (is_other and 0 or size)
        if entries == most or (0 < entries and bytes_max < bytes + math.min(room, 2 * largest)) then
            answer[2] = '1'
            return note()
        end
        if is_other then
            add(member, score, '', '', 'type')
        elseif largest < size then
            add(where == 'member' and member:sub(1, SHOWN) or member, score, '', '', tostring(size))
        elseif where == 'member' then
            add(member, score, '', '', '')
        else
            local payload = payload_of(member)
            add(member, score, payload or '', payload and redis.sha1hex(payload) or '', payload and '' or 'missing')
        end
    end
end
