-- upcoming: returns a histogram of the due times of one queue.
-- KEYS: common.
-- ARGV: now, name, width in ms, buckets.
-- Answers: now, overdue, then number and jobs of each bucket that has any, in no order.
-- Cost: O(levels × such buckets × log N).
local q, width, buckets = call('HGET', $QUEUES, ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local answer = {string.format('%.0f', now), 0}
if not q then return answer end
answer[2] = call('ZLEXCOUNT', $TIMELINE, '[' .. q .. char($BLOCKED), '(' .. q .. char($BLOCKED + 1)) -- blocked jobs are due
local stop = min(now + width * buckets, $INSTANT_MAX_MS + 1)
-- Ungrouped jobs level by level, then the jobs of all groups.
for level = 0, $LEVELS do
    local key, prefix, time = $TIMELINE, q .. char(level), '>I6'
    if level == $LEVELS then key, prefix, time = $GROUPS_BY_PLACE, q .. 'd', '>I7' end
    local function bound(ms) return prefix .. pack(time, ms) end
    answer[2] = answer[2] + call('ZLEXCOUNT', key, '[' .. prefix, '(' .. bound(now + 1))
    local from = now + 1
    while from < stop do
        local first = call('ZRANGEBYLEX', key, '[' .. bound(from), '(' .. bound(stop), 'LIMIT', 0, 1)[1]
        if not first then break end
        local bucket = math.floor((unp(time, first, 5) - now) / width)
        from = min(now + (bucket + 1) * width, stop)
        answer[#answer + 1] = bucket
        answer[#answer + 1] = call('ZLEXCOUNT', key, '[' .. first, '(' .. bound(from))
    end
end
return answer
