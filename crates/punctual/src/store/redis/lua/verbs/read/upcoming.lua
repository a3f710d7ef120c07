-- upcoming: returns a histogram of the due times of one queue, or of all, some in one script.
-- KEYS: common.
-- ARGV: now, name or '', width in ms, buckets, where to go on or ''.
-- Answers: now, where to go on or '', how many are due, then number and jobs of each bucket that has any.
-- Cost: see walk().
local q, width, buckets = '', tonumber(ARGV[3]), tonumber(ARGV[4])
local jobs, answer = {}, {string.format('%.0f', now), '', 0}
if ARGV[2] ~= '' then
    q = number_of(ARGV[2])
    if not q then return answer end
end
answer[2] = walk(q, ARGV[5], min(now + width * buckets, $INSTANT_MAX_MS + 1), width, function(bucket, n)
    jobs[bucket] = (jobs[bucket] or 0) + n
end)
answer[3] = jobs[0] or 0
jobs[0] = nil
for bucket, n in pairs(jobs) do
    answer[#answer + 1] = bucket - 1
    answer[#answer + 1] = n
end
return answer
