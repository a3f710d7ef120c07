-- list: returns a slice of the jobs of one place, at most as many as requested and about a mebibyte. Waiting jobs are
-- listed in the order in which they run, running ones by the end of their leases. Ended jobs are listed from the last
-- to the first.
-- KEYS: common.
-- ARGV: now, place (t, l or e), the member to go on after or '', name of a queue or '', most jobs.
-- Answers: now, total, 1 if there are more; then per job: member; id; record or ''; its payload, if the record
--   says that it is stored apart; history; run; 1 if it is past its
--   age, 2 if it is due and held back.
-- A member of another length is passed over: no script wrote it. An audit tells of it.
-- Cost: O(n log N).
local CHUNK, PASSES_MAX = $READ_AT_ONCE, 64
local place, after, name, most = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local answer, bytes = {string.format('%.0f', now), call('HLEN', $RECORDS), 0}, 0
local from, to = '-', '(\255'
if name ~= '' then
    local q = number_of(name)
    if not q then return answer end
    from, to = '[' .. q, '(' .. q .. '\255'
end
local key, verb = place == 't' and $TIMELINE or place == 'l' and $LEASES or $ENDED_JOBS, place == 'e' and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX'
if place == 'e' then from, to = to, from end
local function is_whole(member)
    local mark = byte(member, 4)
    if place ~= 't' or not mark then return #member == (place == 'e' and 30 or 25) end
    if mark == $BLOCKED then return #member == 48 or #member == 64 end
    if mark == $GROUPED then return #member == 44 end
    return mark < $LEVELS and #member == 27
end
local members, at = {}, 1
for _ = 1, PASSES_MAX do
    local some = call(verb, key, after == '' and from or '(' .. after, to, 'LIMIT', 0, most + 1 - #members)
    for _, member in ipairs(some) do
        after = member
        if is_whole(member) then members[#members + 1] = member end
    end
    if #some == 0 or most < #members then break end
end
local function id_in(member) return place == 'l' and sub(member, 10, 25) or rules().id_in(member) end
while at <= min(#members, most) and bytes < $BATCH_BYTES_MAX do
    local ids = {}
    for i = at, min(at + CHUNK - 1, #members, most) do ids[#ids + 1] = id_in(members[i]) end
    local records, histories, runs = call('HMGET', $RECORDS, unpack(ids)), call('HMGET', $HISTORIES, unpack(ids)), call('HMGET', $RUNS, unpack(ids))
    for i, id in ipairs(ids) do
        if $BATCH_BYTES_MAX <= bytes then break end
        local rec, n = records[i] or '', #answer
        local job = {id = id, q = sub(members[at], 1, 3)}
        pcall(rules().history, job, histories[i]) -- a job that cannot be read is returned all the same
        local is_blocked = false
        if place == 't' and rec ~= '' then
            job.state = $WAITING
            is_blocked = pcall(rules().head, job, rec) and pcall(rules().history, job, histories[i]) and rules().is_blocked(job)
        end
        answer[n + 1], answer[n + 2], answer[n + 3] = members[at], id, rec
        local payload = rec ~= '' and rules().payload_apart(id, rec)
        if payload then n, answer[n + 4] = n + 1, payload end
        answer[n + 4], answer[n + 5] = histories[i] or '', runs[i] or ''
        answer[n + 6] = is_blocked and 2 or rules().is_hidden(job) and 1 or 0
        bytes, at = bytes + #rec + (payload and #payload or 0) + (histories[i] and #histories[i] or 0), at + 1
    end
end
if at <= #members then answer[3] = 1 end
return answer
