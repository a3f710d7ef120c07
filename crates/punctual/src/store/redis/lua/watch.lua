-- watch: notes that a caller waits for the end of a job. The note is never removed; the cost of that is one
-- notification.
-- KEYS: common.
-- ARGV: now, id.
-- Answers: 'ended', 'gone' or 'lives'; notifications left to the caller.
-- Cost: O(log N).
drains()
local job = rules().load(ARGV[2])
if not job then return {'gone', ''} end
if job.ended and not job.run then return {'ended', ''} end
local stands = job.run or call('ZSCORE', $TIMELINE, rules().waiting_member(job)) or job.key and call('ZSCORE', $TIMELINE, rules().blocked_member(job))
-- A job that is in no place is for an audit to repair.
if stands and not job.watched then
    if not job.run then rules().leave_waiting(job) end
    job.watched = '\1'
    rules().put_history(job)
    if job.run then
        rules().set_history(job.run)
        rules().put_run(job.id, job.run)
    else
        -- The job may have been blocked, out of the timeline. It is checked again.
        rules().put_waiting(job)
        pending().notify(job.q, job.run_at)
    end
end
return {'lives', put()}
