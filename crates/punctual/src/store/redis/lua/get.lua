-- get, holder: one job. KEYS: common. ARGV: now, id or '', digest. Answers: nothing, or id; record; past; run; 1 if it is
-- due and held back. A job past the
-- age that its queue keeps it for is hidden. Cost: O(1).
local id = ARGV[2] ~= '' and ARGV[2] or late().holder(ARGV[3])
local job = id and late().load(id)
if not job or late().is_hidden(job) then return {} end
local is_blocked = job.state == WAITING and job.run_at <= now and (late().is_blocked(job) or call('HEXISTS', I, job.q) == 1 and late().room_of(job.q) <= 0)
return {id, job.rec, job.x, job.row or '', is_blocked and 1 or 0}
