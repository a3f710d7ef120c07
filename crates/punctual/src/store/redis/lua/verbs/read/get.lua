-- get, holder: returns one job, by its id or as the holder of a unique key.
-- KEYS: common.
-- ARGV: now, id or '', digest.
-- Answers: nothing, or id; record; history; run; 1 if it is due and held back. A job past the age that its queue keeps
--   it for is hidden.
-- Cost: O(1).
local id = ARGV[2] ~= '' and ARGV[2] or rules().holder(ARGV[3])
local job = id and rules().load(id)
if not job or rules().is_hidden(job) then return {} end
return {id, job.rec, job.x, job.row or '', rules().is_blocked(job) and 1 or 0}
