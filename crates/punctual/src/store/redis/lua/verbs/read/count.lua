-- count: returns the counters of one queue, or of all, some in one script. A job that changes its state between two of them counts
-- twice, or not at all.
-- KEYS: common.
-- ARGV: now, name or '', where to go on or ''.
-- Answers: where to go on or '', then the sums of this part, in the order of counted().
-- Cost: one queue: O(log N). All: see walk(), two commands for each state in which a queue keeps jobs, and four for 256 queues.
local name, from, sum = ARGV[2], ARGV[3], {0, 0, 0, 0, 0, 0, 0, 0}
if name ~= '' then
    local q = number_of(name)
    return {'', unpack(q and counted(q) or sum)}
end
if from == '' then
    sum[1] = call('ZLEXCOUNT', $TIMELINE, '-', '(' .. LAST)
    sum[4] = call('ZLEXCOUNT', $LEASES, '-', '(' .. LAST)
end
if string.find(from, '^[th]') or from == '' then
    from = walk('', from, now + 1, 1, function(_, jobs) sum[3] = sum[3] + jobs end)
    if from == '' then from = 'e-' end
end
-- Ended jobs, by queue and state.
local AT = {[$DONE] = 5, [$DEAD] = 6, [$CANCELLED] = 7}
while sub(from, 1, 1) == 'e' and 0 < left do
    local first = call('ZRANGEBYLEX', $ENDED_JOBS, sub(from, 2), '+', 'LIMIT', 0, 1)[1]
    from, left = 'n', left - 2
    if first then
        local prefix, at = sub(first, 1, 4), AT[byte(first, 4)]
        if at then sum[at] = sum[at] + call('ZLEXCOUNT', $ENDED_JOBS, '[' .. first, '(' .. prefix .. BEHIND) end
        from = 'e' .. (#prefix < 4 and '(' .. first or beyond(prefix))
    end
end
-- What is counted as it changes.
while sub(from, 1, 1) == 'n' and 0 < left do
    local names, behind = next_queues(sub(from, 2))
    local fields = {}
    for _, q in ipairs(#names == 0 and {} or call('HMGET', $QUEUES, unpack(names))) do
        if q then
            fields[#fields + 1] = q .. 'r'
            fields[#fields + 1] = q .. 'b'
        end
    end
    for i, n in ipairs(#fields == 0 and {} or call('HMGET', $COUNTERS, unpack(fields))) do
        local at = i % 2 == 1 and 2 or 8
        sum[at] = sum[at] + max(tonumber(n or 0) or 0, 0)
    end
    from, left = behind == '' and '' or 'n' .. behind, left - #names
end
return {from, unpack(sum)}
