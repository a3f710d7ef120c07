-- settle: ends leases (S8), sweeps, and may reserve behind it.
-- KEYS: common, then the bells of the queues of the reserve. ARGV: now, n, n ids, n settlements: fence8 verdict1 rest; then,
-- if one follows, the reserve. The rest of a verdict: retry: kind1 ms7 error; snooze: ms7 flag1 reason; cancel: reason;
-- dead: error.
-- Answers: now, into, rings left to the caller, states (a byte each, '-' for a lost lease), then as reserving() says.
-- Cost: O(n log N).
drains()
local n = tonumber(ARGV[2])
turn()
local rows = 0 < n and call('HMGET', R, unpack(ARGV, 3, n + 2)) or {}
local answers, named, met, gone = {}, {}, {}, {}

-- The hot path: acks, in one command per place.
local runs, leases, records, pasts, kept, ended = {}, {}, {}, {}, {}, {}
local function flush()
    if #runs == 0 then return end
    call('HDEL', R, unpack(runs))
    call('ZREM', L, unpack(leases))
    if 0 < #records then call('HDEL', J, unpack(records)) end
    if 0 < #pasts then call('HDEL', X, unpack(pasts)) end
    if 0 < #kept then
        call('HSET', X, unpack(kept))
        call('ZADD', E, unpack(ended))
    end
end
-- What the acks of a queue have in common; counted up, and told when all are there.
local function meet(q)
    local of = {q = q, n = 0, bytes = 0, keeps_nothing = keeps_nothing(queue(q).keep[DONE])}
    met[q], named[#named + 1] = of, q
    return of
end
local PLAIN_PAST = pack('>BBI6', 1 + 32, DONE, now) -- of a job done in its first attempt
local DONE_NOW = pack('>BI6', DONE, now)
local function ack(id, row, place, of)
    local flags, b1, b2, b3, b4 = byte(row, 18, 22)
    local at = #runs + 1
    runs[at], leases[at] = id, place .. id
    of.n, of.bytes = of.n + 1, of.bytes + ((b1 * 256 + b2) * 256 + b3) * 256 + b4
    local has_past = has(flags, 2)
    if 4 <= flags then jobs().free(jobs().run_of(row).digest, id) end
    if of.keeps_nothing then
        records[#records + 1] = id
        if has_past then pasts[#pasts + 1] = id end
        -- Derived: it outlives its record.
        if math.floor(byte(id, 7) / 16) == 8 then jobs().remember(of.q, id, now) end
    else
        local past = PLAIN_PAST
        if has_past then
            local job = {id = id}
            jobs().past(job, call('HGET', X, id))
            job.started, job.state, job.ended, job.reason, job.crashes, job.snoozes = true, DONE, now, nil, 0, 0
            past = jobs().past_of(job)
        end
        kept[#kept + 1], kept[#kept + 2] = id, past
        ended[#ended + 1], ended[#ended + 2] = 0, of.q .. DONE_NOW .. id .. sub(row, 19, 22)
    end
end

-- Any other verdict.
local function verdict(job, what, rest)
    local SNOOZES_MAX, SNOOZE_MIN = 10000, 100
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
    jobs().leave_run(job, next)
    return next.state
end

local ACK, places = byte('a'), {}
for i = 1, n do
    local id, arg, row = ARGV[i + 2], ARGV[i + n + 2], rows[i]
    if not row or gone[id] or sub(row, 1, 8) ~= sub(arg, 1, 8) then
        answers[i] = '-'
    else
        gone[id] = true
        local place = sub(row, 9, 17)
        local of = places[place]
        if not of then
            local q = sub(place, 1, 3)
            of = met[q] or meet(q)
            places[place] = of
        end
        if byte(arg, 9) == ACK then
            ack(id, row, place, of)
            answers[i] = '\1'
        else
            local job = jobs().load(id)
            if job then
                answers[i] = char(verdict(job, sub(arg, 9, 9), sub(arg, 10)))
            else
                call('HDEL', R, id)
                call('ZREM', L, place .. id)
                answers[i] = '-'
            end
        end
    end
end
flush()
for q, of in pairs(met) do
    if 0 < of.n then
        tally(q, 'b', -of.bytes)
        if not of.keeps_nothing then
            tally(q, char(DONE), of.bytes)
            hint(q, now)
        end
    end
end
sweep_ride(named, n + SWEEP_RIDE_MAX)
local answer = {}
if 2 * n + 2 < #ARGV then answer = reserving(2 * n + 3, BELLS) end
put_turn()
put_tallies()
put_hints()
return {text(now), text(into), put_rings(), concat(answers), unpack(answer)}
