-- Limits of queues (S15): how many may run or start, and closed gates. The arithmetic is that of core/rate.rs, in whole numbers
-- below 2^53.

-- How far ahead of now the arrival of a queue or a group is, in parts. One further ahead than any that its rate leaves was
-- left by another rate, or by a clock that went back since: it is void.
local function ahead(row)
    local parts = (row.arrival - now) * row.rate + min(row.part, row.rate - 1)
    return 0 < parts and parts <= row.burst * row.period and parts or 0
end
-- How many jobs a rate and a closed gate let start now, and when the next one may.
local function room_in_time(of)
    local most, opens = NEVER, now
    if now < of.closed and of.closed <= now + GATE_MAX then most, opens = 0, of.closed end
    if 0 < of.rate then
        local left = of.burst * of.period - ahead(of)
        if left < of.period then
            opens = max(opens, now + math.ceil((of.period - left) / of.rate))
        end
        most = min(most, math.floor(left / of.period))
    end
    return most, opens
end
-- As in timeline.lua; and until when the gate is closed by time alone.
local function room_of(q, takes)
    local row = limits_of(q)
    local most, opens = room_in_time(row)
    if 0 < row.concurrency then
        local from, to = within(q)
        local left = row.concurrency - 1 - call('ZLEXCOUNT', LEASES, from, to) - row.started
        if left <= 0 then return 0, NEVER, opens end
        if not takes then most = min(most, left) end
    end
    return most, opens, opens
end
-- So many jobs start by a rate.
local function spend_rate(of, n)
    local parts = ahead(of) + n * of.period
    of.arrival, of.part = now + math.floor(parts / of.rate), parts % of.rate
end
-- So many jobs of a queue start.
local function spend(q, n, takes)
    local row = limits_of(q)
    if not takes then row.started = row.started + n end
    if row.rate == 0 then return end
    spend_rate(row, n)
    row.hinted = true
end
-- A run closes a gate.
local function close(of, till)
    local last = now + GATE_MAX
    till = min(till, last)
    of.closed = of.closed <= last and max(of.closed, till) or till
end
