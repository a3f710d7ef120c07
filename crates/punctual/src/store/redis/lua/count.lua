-- count: kept counters, of one queue or of all. KEYS: common. ARGV: now, name or ''. Answers: as counted(). Cost: O(log N)
-- per queue.
local names = ARGV[2] ~= '' and {ARGV[2]} or call('ZRANGE', N, 0, -1)
local sum = {0, 0, 0, 0, 0, 0, 0, 0}
for _, name in ipairs(names) do
    local q = call('HGET', Q, name)
    if q then
        for i, n in ipairs(counted(q)) do sum[i] = sum[i] + n end
    end
end
return sum
