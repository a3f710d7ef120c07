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
        pick(walk_of(q), n, till, state, function(id, rec, _, job)
            next_fence()
            job = job or jobs().of(id, rec)
            job.crashes, job.snoozes, job.started = 0, 0, true
            jobs().finish(job, DONE, nil)
            local at = #answer
            answer[at + 1], answer[at + 2], answer[at + 3] = id, rec, jobs().past_of(job)
        end)
    end
end
sweep_ride(named, SWEEP_RIDE_MAX)
put_turn()
put_tallies()
put_hints()
put_rings()
return answer
