-- log: asks a rate limiter that keeps a log; the same as core/rate.rs.
-- KEYS: the key.
-- ARGV: now, max, period, cost, 1 if refused calls count.
-- Value: calls2 ends6, then instants of 6 bytes, oldest first; the last `calls` of them count. ends: when none of them
--   counts any more.
-- Answers: 0 if the call passes, else in how many ms it can.
-- A short log is read and written whole. A long one can have 120 KB: only the instants that are needed are read, and
-- new ones are appended.
-- Cost: O(cost), and now and then O(max).
local key = KEYS[1]
local per, period, cost, counts_refused = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local HEAD, INSTANT, SHORT = 8, 6, 160
local is_short = per <= SHORT
local row = is_short and call('GET', key) or not is_short and call('GETRANGE', key, 0, HEAD - 1)
local length = row and (is_short and #row or call('STRLEN', key)) or 0
local calls, ends = 0, 0
if HEAD <= length then calls, ends = unp('>I2I6', row) end
-- Returns the instant of the call that many before the last one, or nil.
local function kept(back)
    if calls <= back then return nil end
    local at = length - INSTANT * (back + 1)
    if is_short then return (unp('>I6', row, at + 1)) end
    return (unp('>I6', call('GETRANGE', key, text(at), text(at + INSTANT - 1))))
end
local last = kept(0)
if last and (ends <= now or now + period < last) then calls, last = 0, nil end
local entered, wait = now, 0
if last then
    local function blocking(others)
        local at = kept(others)
        return at and at + period or 0
    end
    entered = max(last, now)
    local others = per - cost
    wait = blocking(others) - now
    if 0 < wait then
        if not counts_refused then return wait end
        wait = (cost <= others and blocking(others - cost) or entered + period) - now
    end
end
local older = math.min(calls, per - cost)
local head = pack('>I2I6', older + cost, entered + period)
local tail = string.rep(pack('>I6', entered), cost)
local is_whole = is_short or calls == 0 or HEAD + 2 * INSTANT * per < length + #tail
local rest = ''
if is_whole and 0 < older then
    local from = length - INSTANT * older
    rest = is_short and sub(row, from + 1) or call('GETRANGE', key, text(from), -1)
end

if is_whole then
    call('SET', key, head .. rest .. tail, 'PX', lasting(entered + period))
else
    call('APPEND', key, tail)
    call('SETRANGE', key, 0, head)
    call('PEXPIRE', key, lasting(entered + period))
end
return max(wait, 0)
