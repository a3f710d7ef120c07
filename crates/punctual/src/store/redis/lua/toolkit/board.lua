-- board: one step on a leaderboard; the same as store/model/toolkit/board.rs.
-- KEYS: the board; for a board with a window also the numbers of its slots, then its slots, one per bucket. Bucket b is
--   in slot b mod buckets, from 0. An add may name only the slot that the caller takes for that of the newest bucket.
--   1 ZSET  member @ score, negated, so that members of equal scores are in the order of their bytes. With a window it is
--           the sum of the member's buckets; a member whose sum is 0 is not in it
--   2 HASH  slot → the bucket in it, 'newest' → the bucket that was added to last
--   3 … ZSET  member @ what was added in the bucket
-- ARGV: now; 'add' member by | 'all' '' n | 'set' member score | 'remove' member '' | 'rank' member '' | 'top' '' n |
--   'around' member n | 'size' '' ''; then the most members, how many can be removed, buckets or 0, ms of a bucket, the
--   most that a member has in one, the number of the only slot or ''; for 'all' then n members, each with what is added to it.
-- Answers: 'again', if something had to be subtracted first: a slice of a cold bucket; 'wide', if all slots are needed;
--   'range' and the score that would result; 'score' and the score, if the member is on the board; 'standings', the first rank, then members with
--   scores; 'size' and the number of members, also for 'all'.
-- All keys of a board expire with its window. The slots expire later than their sum, because the sum would be wrong
-- otherwise.
-- Cost: O(log N) for each bucket, and for each member that is returned, added to or subtracted from, up to 1,000 of
--   them. Also O(log N) per bucket for each member that is removed: as many members as are added to, and as many more
--   as have 1,000 entries.
local BOARD, META = KEYS[1], KEYS[2]
local what, member, n, members_max, leave_max = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local buckets, length, bucket_max = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local only_slot = tonumber(ARGV[10])
local SLICE = 1000
local has_window = 0 < buckets
local newest, current, held = nil, 0, nil
local function slot_of(bucket) return KEYS[3 + (only_slot and 0 or bucket % buckets)] end
-- Returns the score of a member, or nil.
local function score_of(who)
    local low = call('ZSCORE', BOARD, who)
    return low and 0 - tonumber(low) or nil
end
local function put_sum(who, sum)
    if has_window and sum == 0 then
        call('ZREM', BOARD, who)
    else
        call('ZADD', BOARD, text(0 - sum), who)
    end
end
-- Returns what is in the slots, slot by slot; false for an empty one.
local function slots()
    local fields = {}
    for i = 1, buckets do fields[i] = i - 1 end
    return has_window and call('HMGET', META, unpack(fields)) or {}
end
local function is_held(bucket) return bucket and current - buckets < bucket and bucket <= current end
-- Removes members, up to 1,100: one command for each bucket, however many members there are.
local function remove(them)
    call('ZREM', BOARD, unpack(them))
    for _, bucket in ipairs(held or slots()) do
        bucket = tonumber(bucket or nil)
        if is_held(bucket) then call('ZREM', slot_of(bucket), unpack(them)) end
    end
end
-- Removes the lowest members of a board that has too many. Returns whether there were such.
local function cut()
    local too_many = call('ZCARD', BOARD) - members_max
    if too_many <= 0 then return false end
    remove(call('ZRANGE', BOARD, text(0 - math.min(too_many, leave_max)), -1))
    return true
end
local is_begun = false
if has_window then
    local row = call('HMGET', META, 'newest', only_slot or '')
    newest = tonumber(row[1] or nil)
    local by_clock = floor(now / length)
    current = newest and by_clock <= newest and newest < by_clock + buckets and newest or by_clock
    -- If the clock goes back, a call of a later time may have dropped the newest bucket.
    local number = row[2]
    if not only_slot then number = call('HGET', META, current % buckets) end
    is_begun = newest == current and tonumber(number or nil) == current
end
if only_slot and not is_begun then return {'wide'} end
local function renew()
    -- The numbers of the slots end last: sums without them could never be subtracted from.
    call('PEXPIRE', BOARD, lasting((current + buckets) * length))
    call('PEXPIRE', META, lasting((current + buckets) * length))
end
-- Nothing is cold as long as the newest bucket is in its slot: who began it subtracted everything before.
if has_window and not is_begun then
    held = slots()
    if not newest then call('UNLINK', BOARD) end
    local left = SLICE
    for i = 1, buckets do
        local bucket = tonumber(held[i] or nil)
        if bucket and not is_held(bucket) and 0 < left then
            local slot = KEYS[2 + i]
            local cold = call('ZRANGE', slot, 0, left - 1, 'WITHSCORES')
            -- The first write frees memory, so that a full server lets the script go on.
            call('ZREM', BOARD, '')
            for at = 1, #cold, 2 do put_sum(cold[at], (score_of(cold[at]) or 0) - tonumber(cold[at + 1])) end
            call('ZREMRANGEBYRANK', slot, 0, #cold / 2 - 1)
            if #cold / 2 < left then call('HDEL', META, i - 1) end
            left = left - math.max(#cold / 2, 1)
        end
    end
    if left < SLICE then
        -- A sum of nothing may have become one of something.
        renew()
        return {'again'}
    end
end
if what == 'size' then return {'size', text(call('ZCARD', BOARD))} end
local function standings(from, to)
    local answer = {'standings', text(from + 1)}
    local found = call('ZRANGE', BOARD, text(from), text(to), 'WITHSCORES')
    for at = 1, #found, 2 do
        answer[at + 2], answer[at + 3] = found[at], text(0 - tonumber(found[at + 1]))
    end
    return answer
end
if what == 'top' then return standings(0, n - 1) end
if what == 'rank' or what == 'around' then
    local rank = call('ZRANK', BOARD, member)
    if not rank then return {'standings', '1'} end
    return standings(max(rank - (n or 0), 0), rank + (n or 0))
end
if what == 'remove' then
    local sum = score_of(member)
    remove({member})
    return {'score', sum and text(sum) or nil}
end
local slot = has_window and slot_of(current)
-- Most adds: two steps, whose answers say what else is to do. Nobody has to leave, because there is room for one more. The look at the size
-- also fails before the first write if the board is no sorted set.
if what == 'add' and only_slot and max(n, 0 - n) <= bucket_max and call('ZCARD', BOARD) < members_max then
    -- No member of the board or the slot has 0.
    local function step(key, by)
        local score = tonumber(call('ZADD', key, 'INCR', text(by), member))
        if score == 0 then call('ZREM', key, member) end
        return score
    end
    local part = step(slot, n)
    if part < 0 - bucket_max or bucket_max < part then
        -- Below 2^53, this gives what was there.
        step(slot, 0 - n)
        return {'range', text(part)}
    end
    local sum = 0 - step(BOARD, 0 - n)
    -- A member that has what was added, and nothing else, may be the first of its key.
    if sum == n or 1 < stays then renew() end
    if part == n or 1 < stays then call('PEXPIRE', slot, lasting((current + 2 * buckets) * length)) end
    return {'score', sum ~= 0 and text(sum) or nil}
end
local is_new = held and tonumber(held[current % buckets + 1] or nil) ~= current
-- The members, their scores in the bucket, and their sums.
local whom, scores, sums, more = {member}, {n}, {n}, 0
if what == 'set' then
    remove({member})
    more = 1
else
    if what == 'all' then
        for i = 1, n do whom[i], scores[i] = ARGV[9 + 2 * i], tonumber(ARGV[10 + 2 * i]) end
    end
    for i = 1, #whom do
        local by = scores[i]
        local had = score_of(whom[i])
        local part = had or 0
        if not had then more = more + 1 end
        if has_window then part = not is_new and tonumber(call('ZSCORE', slot, whom[i]) or 0) or 0 end
        scores[i] = part + by
        if scores[i] < 0 - bucket_max or bucket_max < scores[i] then return {'range', text(scores[i])} end
        sums[i] = (had or 0) + by
    end
end
if has_window then
    if is_new then
        -- Entries of a window that is over.
        call('UNLINK', slot)
        call('HSET', META, current % buckets, text(current))
        held[current % buckets + 1] = current
    end
    if newest ~= current then call('HSET', META, 'newest', text(current)) end
end
-- Who is removed leaves all slots.
if only_slot and members_max < call('ZCARD', BOARD) + more then return {'wide'} end
local is_first = false
for i = 1, #whom do
    if has_window and scores[i] == 0 then
        call('ZREM', slot, whom[i])
    elseif has_window then
        is_first = call('ZADD', slot, text(scores[i]), whom[i]) == 1 or is_first
    end
    put_sum(whom[i], sums[i])
end
local is_cut = not only_slot and cut()
-- A key without members is gone with its end. The next member makes it anew. A clock of the caller can have gone back.
local is_of_caller = 1 < stays
if has_window and (0 < more or not is_begun or is_of_caller) then renew() end
if has_window and (is_first or is_of_caller) then
    call('PEXPIRE', slot, lasting((current + 2 * buckets) * length))
end
if what == 'all' then return {'size', text(call('ZCARD', BOARD))} end
local is = sums[1]
if is_cut then is = score_of(member) elseif has_window and is == 0 then is = nil end
return {'score', is and text(is) or nil}
