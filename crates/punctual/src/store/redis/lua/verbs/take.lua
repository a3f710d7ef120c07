-- take: reclaims expired leases, then acks due jobs in the same step: at most once.
-- KEYS: common, the notification key of the queue.
-- ARGV: now, name, n, older_than in ms, bytes that the call has so far, or '' at its beginning.
-- Answers: epoch; notifications left to the caller; '1' if groups got as many services as one script gives; then per
--   job: id; record; its payload, if the record says that it is stored apart; history.
-- Cost: as reserve.
drains()
local q, n = number_of(ARGV[2]), tonumber(ARGV[3])
mark()
local answer = {shard.epoch, '', ''}
local named = {}
if q then
    named[1] = q
    shard.notifications[q] = KEYS[$NOTIFICATIONS]
    rules().reclaim(named)
    rules().hand_over()
    local state = {
        n = n, candidates = n + $CANDIDATES_EXTRA, services = $GROUP_SERVICES_MAX, bytes = tonumber(ARGV[5]) or 0, any = ARGV[5] ~= '',
        takes = true,
    }
    local till = now - tonumber(ARGV[4])
    if 0 <= till then
        pick_groups(walk_of(q), n, till, state, function(id, rec, _, job)
            shard.fence = max(shard.fence, now * 1000) + 1
            local payload = rules().payload_apart(id, rec)
            job.expired_leases, job.snoozes, job.started = 0, 0, true
            -- It runs no longer than this step.
            if job.key then rules().touch(job.q, job.key) end
            rules().finish(job, $DONE, nil)
            local at = #answer
            answer[at + 1], answer[at + 2], answer[at + 3] = id, rec, payload
            answer[#answer + 1] = rules().history_of(job)
        end)
        if state.services == 0 then answer[3] = '1' end
    end
end
sweep_ride(named, 0)
put_shard()
answer[2] = put()
return answer
