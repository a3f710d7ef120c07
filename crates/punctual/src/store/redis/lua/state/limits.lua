-- The limiters of queues (S15): how many jobs can run or start, and pauses. The arithmetic is that of core/rate.rs, in
-- whole numbers below 2^53.

-- Returns how far the theoretical arrival time of a queue or a group is after now, in parts. A time further ahead than
-- its rate can leave comes from another rate, or from a clock that went back since. It is void.
local function ahead(row)
    local parts = (row.tat - now) * row.rate + min(row.part, row.rate - 1)
    return 0 < parts and parts <= row.burst * row.period and parts or 0
end
-- Returns the first instant at which a rate and a pause let a job start. If they do now, it is a past one.
local function opening(of)
    local opens, part = of.closed <= now + $PAUSE_MAX and of.closed or 0, min(of.part, of.rate - 1)
    if 0 < of.rate and (of.tat - now) * of.rate + part <= of.burst * of.period then
        opens = max(opens, of.tat + math.ceil((part - (of.burst - 1) * of.period) / of.rate))
    end
    return opens
end
-- Returns how many jobs a rate and a pause let start now, and when the next one can.
local function room_in_time(of)
    local most, opens = $NEVER, now
    if now < of.closed and of.closed <= now + $PAUSE_MAX then most, opens = 0, of.closed end
    if 0 < of.rate then
        local left = of.burst * of.period - ahead(of)
        if left < of.period then
            opens = max(opens, now + math.ceil((of.period - left) / of.rate))
        end
        most = min(most, math.floor(left / of.period))
    end
    return most, opens
end
-- See timeline.lua. The third value is until when rate and pause allow no start.
local function room_of(q, takes)
    local row = limits_of(q)
    local most, opens = room_in_time(row)
    if 0 < row.concurrency then
        local from, to = within(q)
        local left = row.concurrency - 1 - call('ZLEXCOUNT', $LEASES, from, to) - row.started
        if left <= 0 then return 0, $NEVER, opens end
        if not takes then most = min(most, left) end
    end
    return most, opens, opens
end
-- Counts the start of `n` jobs against a rate.
local function spend_rate(of, n)
    local parts = ahead(of) + n * of.period
    of.tat, of.part = now + math.floor(parts / of.rate), parts % of.rate
end
-- Counts the start of `n` jobs of a queue.
local function spend(q, n, takes)
    local row = limits_of(q)
    if not takes then row.started = row.started + n end
    if row.rate == 0 then return end
    spend_rate(row, n)
    row.hinted = true
end
-- Sets a pause at the request of a run.
local function close(of, till)
    local last = now + $PAUSE_MAX
    till = min(till, last)
    of.closed = of.closed <= last and max(of.closed, till) or till
end

rules.room_of, rules.spend = room_of, spend
