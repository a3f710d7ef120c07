-- settle: ends leases (S8), sweeps, and may reserve behind it.
-- KEYS: common, then the bells of the queues of the reserve. ARGV: now, number of settlements, per settlement: fence8 id
-- verdict1 rest; then, if one follows, the reserve. The rest of a verdict: retry: kind1 ms7 error; snooze: ms7 flag1
-- reason; cancel: reason; dead: error.
-- Answers: now, into, rings left to the caller, states (a byte each, '-' for a lost lease), then as reserving() says.
-- Cost: O(n log N).
drains()
local n = tonumber(ARGV[2])
local ids, gone = {}, {}
for i = 1, n do ids[i] = sub(ARGV[i + 2], 9, 24) end
turn()
local rows = 0 < n and call('HMGET', R, unpack(ids)) or {}
local answers, named, met = {}, {}, {}

-- The hot path: acks, in one command per place.
local runs, leases, records, pasts, kept, ended = {}, {}, {}, {}, {}, {}
local function flush()
    if #runs == 0 then return end
    call('HDEL', R, unpack(runs))
    call('ZREM', L, unpack(leases))
    if 0 < #records then
        call('HDEL', J, unpack(records))
        call('ZREM', D, unpack(records))
    end
    if 0 < #pasts then call('HDEL', X, unpack(pasts)) end
    if 0 < #kept then
        call('HSET', X, unpack(kept))
        call('ZADD', E, unpack(ended))
    end
end
local ZEROS = string.rep('\0', 16)
local function ack(id, run)
    runs[#runs + 1] = id
    leases[#leases + 1] = run.q .. at6(run.till) .. id
    if run.digest ~= ZEROS then free(run.digest, id) end
    tally(run.q, 'b', -run.bytes)
    local keep = queue(run.q).keep[DONE]
    if keeps_nothing(keep) then
        records[#records + 1] = id
        if run.past == '\1' then pasts[#pasts + 1] = id end
        remember(run.q, id, now)
    else
        local job = {id = id, q = run.q, bytes = run.bytes}
        past(job, run.past == '\1' and call('HGET', X, id))
        job.started, job.state, job.ended, job.reason, job.crashes, job.snoozes = true, DONE, now, nil, 0, 0
        kept[#kept + 1], kept[#kept + 2] = id, past_of(job)
        ended[#ended + 1], ended[#ended + 2] = 0, ended_member(job)
        tally(run.q, char(DONE), run.bytes)
    end
end

-- Any other verdict.
local function verdict(job, what, rest)
    local next = {attempt = job.attempt, state = WAITING}
    if has(job.run.flags, 1) then
        -- S12: the end of the run decides, and anything but an ack obeys the request.
        next.state, next.reason = CANCELLED, 'cancelled'
    elseif what == 'r' then
        local kind, ms = unp('>c1I7', rest)
        next.failed = sub(rest, 9)
        if job.max_attempts <= job.attempt then
            next.state, next.reason = DEAD, 'attempts'
        else
            next.attempt = job.attempt + 1
            next.run_at = kind == 'a' and max(ms, now) or min(now + ms, END)
        end
    elseif what == 's' then
        next.snoozes = job.snoozes + 1
        if SNOOZES_MAX <= next.snoozes then
            next.state, next.reason = DEAD, 'snoozes'
        else
            next.run_at = min(now + max(unp('>I7', rest), SNOOZE_MIN), END)
            if sub(rest, 8, 8) == '1' then next.reason = sub(rest, 9) end
        end
    elseif what == 'c' then
        next.state, next.reason = CANCELLED, rest
    elseif what == 'd' then
        next.state, next.reason, next.failed = DEAD, rest, rest
    end
    leave_run(job, next)
    return next.state
end

for i = 1, n do
    local arg, row, id = ARGV[i + 2], rows[i], ids[i]
    if not row or gone[id] or sub(row, 1, 8) ~= sub(arg, 1, 8) then
        answers[i] = '-'
    else
        gone[id] = true
        local run, what = run_of(row), sub(arg, 25, 25)
        local job = what ~= 'a' and load(id)
        if what == 'a' then
            ack(id, run)
            answers[i] = char(DONE)
        elseif job then
            answers[i] = char(verdict(job, what, sub(arg, 26)))
        else
            call('HDEL', R, id)
            call('ZREM', L, run.q .. at6(run.till) .. id)
            answers[i] = '-'
        end
        if not met[run.q] then
            met[run.q], named[#named + 1] = true, run.q
        end
    end
end
flush()
sweep(named, n + SWEEP_RIDE_MAX)
local answer = {}
if n + 2 < #ARGV then answer = reserving(n + 3, BELLS) end
put_tallies()
return {text(now), text(into), put_rings(), concat(answers), unpack(answer)}
