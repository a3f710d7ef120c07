-- get, holder: returns one job, by its id or as the holder of a unique key.
-- KEYS: common.
-- ARGV: now, id or '', digest.
-- Answers: nothing, or id; record; its payload, if the record says that it is stored apart; history; run; 1 if it is
--   due and held back. A job past the age that its queue keeps it for is hidden.
-- Cost: O(1).
local id = ARGV[2] ~= '' and ARGV[2] or rules().holder(ARGV[3])
local job = id and rules().load(id)
if not job or rules().is_hidden(job) then return {} end
local answer = {id, job.rec, rules().payload_apart(id, job.rec)}
for _, part in ipairs({job.x, job.row or '', rules().is_blocked(job) and 1 or 0}) do answer[#answer + 1] = part end
return answer
