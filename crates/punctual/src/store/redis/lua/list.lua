-- list: a slice of all jobs, newest id first, at most as many as asked for and about a mebibyte. KEYS: common. ARGV: now,
-- id to go on behind or '', most jobs. Answers: now, total, then per job: id; record; past; run; 1 if it is past its age.
-- Cost: O(n log N).
local CHUNK = 16 -- records read at once, before their size is known
local ids = call('ZREVRANGEBYLEX', D, ARGV[2] == '' and '+' or '(' .. ARGV[2], '-', 'LIMIT', 0, tonumber(ARGV[3]))
local answer, bytes = {text(now), text(call('HLEN', J))}, 0
local at = 1
while at <= #ids and bytes < BYTES_MAX do
    local chunk = {unpack(ids, at, min(at + CHUNK - 1, #ids))}
    local records, pasts, runs = call('HMGET', J, unpack(chunk)), call('HMGET', X, unpack(chunk)), call('HMGET', R, unpack(chunk))
    for i, id in ipairs(chunk) do
        if records[i] then
            local job = {q = sub(records[i], 3, 5)}
            past(job, pasts[i])
            local n = #answer
            answer[n + 1], answer[n + 2], answer[n + 3] = id, records[i], pasts[i] or ''
            answer[n + 4], answer[n + 5] = runs[i] or '', is_hidden(job) and 1 or 0
            bytes = bytes + #records[i]
        end
    end
    at = at + #chunk
end
return answer
