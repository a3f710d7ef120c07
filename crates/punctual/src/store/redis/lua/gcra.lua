-- gcra: asks a rate limiter that keeps a rate, opposite src/rate.rs. KEYS: the key. ARGV: now, max, period, burst, cost.
-- Value: ms7 part3, the arrival of all that passed: milliseconds, and parts of one, `max` of which make one.
-- Answers: 0 if it may be done, else in how many ms it may. Every number is whole and below 2^53. Cost: O(1).
local key = KEYS[1]
local per, period, burst, cost = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
-- How long n steps last. The quotient may be rounded up to a whole number, and a part be below 0 then.
local function steps(n)
    local parts = n * period
    local ms = floor(parts / per)
    local part = parts - ms * per
    if part < 0 then return ms - 1, part + per end
    return ms, part
end
local burst_ms, burst_part = steps(burst)
local ms, part = now, 0
local row = call('GET', key)
if row then
    local kept_ms, kept_part = unp('>I7I3', row)
    kept_part = math.min(kept_part, per - 1) -- another rate may have left more
    local ahead = kept_ms - now - burst_ms
    local is_believed = ahead < 0 or ahead == 0 and kept_part <= burst_part
    if is_believed and now <= kept_ms then ms, part = kept_ms, kept_part end
end
local cost_ms, cost_part = steps(cost)
ms, part = ms + cost_ms, part + cost_part
ms, part = ms + floor(part / per), part % per
local wait = ms - now - burst_ms
if burst_part < part then wait = wait + 1 end
if 0 < wait then return wait end

call('SET', key, pack('>I7I3', ms, part), 'PX', lasting(ms + 1))
return 0
