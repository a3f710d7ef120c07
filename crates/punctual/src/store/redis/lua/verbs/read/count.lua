-- count: returns stored counters of one queue, or of all, some queues at a time.
-- KEYS: common.
-- ARGV: now, name or '', where to go on or ''.
-- Answers: where to go on or '', then the sums of these queues, in the order of counted().
-- Cost: O(log N) per queue.
local names, from = {ARGV[2]}, ''
if ARGV[2] == '' then names, from = next_queues(ARGV[3]) end
local sum = {0, 0, 0, 0, 0, 0, 0, 0}
for _, name in ipairs(names) do
    local q = call('HGET', $QUEUES, name)
    if q then
        for i, n in ipairs(counted(q)) do sum[i] = sum[i] + n end
    end
end
return {from, unpack(sum)}
