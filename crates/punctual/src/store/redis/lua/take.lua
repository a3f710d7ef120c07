-- take: takes back, then acks due jobs in the same step: at most once.
-- KEYS: common, the queue's bell. ARGV: now, name, n, older_than in ms. Answers: per job: id; record; past. Cost: as reserve.
drains()
local q, n = call('HGET', Q, ARGV[2]), tonumber(ARGV[3])
local answer = {}
turn()
local named = {}
if q then
    named[1] = q
    bells[q] = KEYS[BELLS]
    take_back(named)
    local state = {n = n, candidates = n + CANDIDATES_EXTRA, bytes = 0}
    local till = now - tonumber(ARGV[4])
    if 0 <= till then
        pick(q, n, till, state, function(job)
            next_fence()
            job.crashes, job.snoozes, job.started = 0, 0, true
            finish(job, DONE, nil)
            answer[#answer + 1] = job.id
            answer[#answer + 1] = job.rec
            answer[#answer + 1] = past_of(job)
        end)
    end
    put_fence()
end
sweep(named, SWEEP_RIDE_MAX)
put_tallies()
put_rings()
return answer
