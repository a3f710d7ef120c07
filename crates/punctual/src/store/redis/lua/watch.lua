-- watch: notes that somebody waits for the end of a job. Nothing takes that back: it costs one ring.
-- KEYS: common. ARGV: now, id. Answers: 'ended', 'gone' or 'lives', rings left to the caller. Cost: O(log N).
drains()
local job = late().load(ARGV[2])
if not job then return {'gone', ''} end
if job.ended and not job.run then return {'ended', ''} end
local stands = job.run or call('ZSCORE', T, late().waiting_member(job)) or job.key and call('ZSCORE', T, late().parked_member(job))
-- One that stands nowhere is for an audit to mend.
if stands and not job.watched then
    if not job.run then late().leave_waiting(job) end
    job.watched = '\1'
    late().put_past(job)
    if job.run then
        late().set_past(job.run)
        late().put_run(job.id, job.run)
    else
        -- It may have stood elsewhere than in the timeline, and is looked at again.
        late().put_waiting(job)
        pending().ring(job.q, job.run_at)
    end
end
return {'lives', put()}
