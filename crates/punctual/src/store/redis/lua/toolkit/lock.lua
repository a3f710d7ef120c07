-- lock: one step on a lock; the same as store/model/toolkit/lock.rs.
-- KEYS: lk, lz, the notification key of the lock.
--   1 lk  HASH  name → owner16 fence8 until6 lasts6 short6; NUL, which is no name → fence8, the last fence of all locks
--   2 lz  ZSET  name @ until
--   3 w:$lock/name  ZSET  'r' @ ms, 's' @ ms: its notifications, like those of queues; see put() in notifications.lua
-- ARGV: now, then 'acquire' name owner lease | 'extend' name owner lease | 'release' name owner, or '' for any owner |
--   'show' name | 'list' limit.
-- Answers: 'yours' or 'taken', then now, fence8 and until6; 'released'; 'free'; 'listed' or 'more', now, then name,
--   fence8 and until6 of each lock.
-- A fence is above all earlier ones, and at least the time in microseconds. So no fence is used again after a server
-- lost the last ones (S1).
-- Locks long past their end are removed by each write, some at a time. Cost: O(log N), per lock of a list.
local LK, LZ, NOTIFICATION = KEYS[1], KEYS[2], KEYS[3]
local FORGET_MAX, FORGET_AFTER, END, FLOOR_MAX, SPARE, NOTIFICATION_MS = $TOOL_FORGET_MAX, $TOOL_MEMORY, $INSTANT_MAX_MS, $NEVER, $SPARE, 60000
-- Returns when a holding ends, as it looks now: see Term in core/silence.rs. Older versions stored no length.
local function till_of(row)
    local till = unp('>I6', row, 25)
    if #row < 42 then return till end
    local lasts, short = unp('>I6I6', row, 31)
    local longest = math.min(now + lasts, END)
    if till <= longest + $STEP_BACK_MIN then return till end
    return 0 < short and short <= longest + $STEP_BACK_MIN and short or longest
end
local what, name, owner, lease = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
if what == 'list' then
    local limit = tonumber(name)
    local names = call('ZRANGEBYSCORE', LZ, '(' .. text(now), '+inf', 'LIMIT', 0, limit + 1)
    local answer = {'listed', text(now)}
    for i, held in ipairs(names) do
        if limit < i then
            answer[1] = 'more'
            break
        end
        local row = call('HGET', LK, held)
        if row and now < till_of(row) then
            local n = #answer
            answer[n + 1], answer[n + 2], answer[n + 3] = held, sub(row, 17, 24), pack('>I6', till_of(row))
        end
    end
    return answer
end
local last = call('HGET', LK, name)
local was_owner = last and sub(last, 1, 16) == owner
-- Its owner may extend a lock that nobody acquired since its end, until it may be forgotten.
local past = what == 'extend' and was_owner and FORGET_AFTER or 0
local row = last and now < till_of(last) + past and last
local function taken() return {'taken', text(now), sub(row, 17, 24), pack('>I6', till_of(row))} end
local is_owner = row and was_owner
if what == 'show' or what == 'release' and owner ~= '' and not was_owner then
    return row and taken() or {'free'}
end
if what == 'release' then
    -- Also if it has ended: it must not be extended any more.
    call('HDEL', LK, name)
    call('ZREM', LZ, name)
    if not row then return {'free'} end
    -- A waiting process checks by itself at the end of the lease. So a notification that nobody received can expire.
    call('ZADD', NOTIFICATION, 'LT', 0, 'r', text(now + SPARE), 's')
    call('PEXPIRE', NOTIFICATION, NOTIFICATION_MS)
    return {'released'}
end
if row and not is_owner then
    local answer = taken()
    -- From then on, a holding of a clock that was ahead ends in its length.
    if what == 'acquire' and answer[4] ~= sub(row, 25, 30) and answer[4] ~= sub(row, 37) then
        call('HSET', LK, name, sub(row, 1, 36) .. answer[4])
    end
    return answer
end
if what == 'extend' and not row then return {'free'} end
local fence = row and sub(row, 17, 24)
local next_fence
if not fence then
    local highest = call('HGET', LK, '\0')
    next_fence = pack('>I8', max(highest and unp('>I8', highest) or 0, math.min(now * 1000, FLOOR_MAX)) + 1)
end
local old = call('ZRANGEBYSCORE', LZ, '-inf', text(now - FORGET_AFTER), 'LIMIT', 0, FORGET_MAX)

-- First the writes that free memory: after them, a full server accepts the others, too.
for _, past in ipairs(old) do
    call('ZREM', LZ, past)
    call('HDEL', LK, past)
end
local till = math.min(now + lease, END)
if next_fence then call('HSET', LK, '\0', next_fence) end
fence = fence or next_fence
call('HSET', LK, name, owner .. fence .. pack('>I6I6I6', till, lease, 0))
call('ZADD', LZ, text(till), name)
return {'yours', text(now), fence, pack('>I6', till)}
