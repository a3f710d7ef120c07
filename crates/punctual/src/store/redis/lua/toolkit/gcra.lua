-- gcra: asks a rate limiter that keeps a rate; the same as core/rate.rs.
-- KEYS: the key.
-- ARGV: now, max, period, burst, cost, how far ahead of now the theoretical arrival time left by another rule can be.
-- Value: ms7 part3, the theoretical arrival time of all calls that passed: milliseconds, and parts of one; a ms has
--   `max` parts.
-- Answers: 0 if the call passes, else in how many ms it can.
-- Every number is whole and below 2^53. Cost: O(1).
local key = KEYS[1]
local per, period, burst, cost = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
-- Returns how long n steps last. The quotient may be rounded up to a whole number, and then a part is below 0.
local function steps(n)
    local parts = n * period
    local ms = floor(parts / per)
    local part = parts - ms * per
    if part < 0 then return ms - 1, part + per end
    return ms, part
end
local burst_ms, burst_part = steps(burst)
local ms, part, is_changed = now, 0, false
local row = call('GET', key)
if row then
    local kept_ms, kept_part = unp('>I7I3', row)
    kept_part = math.min(kept_part, per - 1) -- another rate may have left more
    local ahead = kept_ms - now - burst_ms
    if ahead < 0 or ahead == 0 and kept_part <= burst_part then
        if now <= kept_ms then ms, part = kept_ms, kept_part end
    elseif kept_ms <= now + tonumber(ARGV[6]) then
        -- Another rule left it further ahead than this rule can, or the clock went back since.
        ms, part, is_changed = now + burst_ms, burst_part, true
    end
end
local cost_ms, cost_part = steps(cost)
local next_ms, next_part = ms + cost_ms, part + cost_part
next_ms, next_part = next_ms + floor(next_part / per), next_part % per
local wait = next_ms - now - burst_ms
if burst_part < next_part then wait = wait + 1 end
if 0 < wait then
    if is_changed then call('SET', key, pack('>I7I3', ms, part), 'PX', lasting(ms + 1)) end
    return wait
end

call('SET', key, pack('>I7I3', next_ms, next_part), 'PX', lasting(next_ms + 1))
return 0
