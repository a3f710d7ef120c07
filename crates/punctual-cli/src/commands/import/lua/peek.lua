-- Purpose: reads the next elements of a list with their payloads; writes nothing.
-- KEYS: 1 the state; 2 the list; 3 where payloads are in a hash by what stands in the list, that hash.
-- ARGV: 1 the caller's token, '' for who only looks; 2 the end that is popped from: 'left' or 'right'; 3 most elements; 4 most bytes,
--   one larger element apart; 5 the largest payload.
-- Answer: {elements taken off so far, '1' where there may be more, else '0', then of each element: itself, its payload ('' where
--   there is no hash), and what is wrong with it: '', 'missing' or its size, which is too large}.
-- Cost: one command for up to eight elements, and with a hash two for each.
local SLICE_MAX, SHOWN = 8, 50

local owner, taken = unpack(redis.call('HMGET', KEYS[1], 'owner', 'taken'))
if ARGV[1] ~= '' and owner ~= ARGV[1] then return redis.error_reply('TAKENOVER by another import') end
local is_left, most, bytes_max, largest = ARGV[2] == 'left', tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local bodies = KEYS[3]

local function slice_from(at, n)
    if is_left then return redis.call('LRANGE', KEYS[2], at, at + n - 1) end
    local slice, turned = redis.call('LRANGE', KEYS[2], -at - n, -at - 1), {}
    for i = #slice, 1, -1 do turned[#turned + 1] = slice[i] end
    return turned
end

local answer, bytes, elements = {taken or '0', '0'}, 0, 0
local function add(element, payload, wrong)
    for _, part in ipairs({element, payload, wrong}) do answer[#answer + 1] = part end
    bytes, elements = bytes + #element + #payload, elements + 1
end

-- The length of an element is known when it was read: so few are read at once, and at first one.
local n = 1
while true do
    local slice = slice_from(elements, n)
    if not slice[1] then return answer end
    n = math.min(2 * n, SLICE_MAX)
    for _, element in ipairs(slice) do
        local size = bodies and redis.call('HSTRLEN', bodies, element) or #element
        if elements == most or (0 < elements and bytes_max < bytes + math.min(size, 2 * largest)) then
            answer[2] = '1'
            return answer
        end
        if largest < size then
            add(element:sub(1, SHOWN), '', tostring(size))
        elseif bodies then
            local payload = redis.call('HGET', bodies, element)
            add(element, payload or '', payload and '' or 'missing')
        else
            add(element, '', '')
        end
    end
end
