-- restore: makes again what is gone or damaged of the state of a shard. What stands is left.
-- KEYS: common.
-- ARGV: now; the epoch; then, for shard 0 only: the layout as read, the layout and its pins, or '' and '' to leave them; which store it is, if
--   another shard knows it, or ''.
-- Answers: 1 if something was gone or damaged, else 0; alone in a list.
-- Rules: A layout is replaced only if it is still the one that was read. Fences need no memory: they are above the µs of the clock (see
--   ../verbs/reserve/numbered.lua). When the last call was is not known, so the store counts as away until now: a lease that ended meanwhile waits for its holder
--   (S9).
-- Cost: O(1).
local epoch, seen, layout, pins, identity = tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local rows, made = call('HMGET', $STATE, 'turn', 'layout', 'identity'), 0
-- A full server goes on after this, see drains() in base.lua.
call('ZREM', $LEASES, '')
local function put(...)
    call('HSET', $STATE, ...)
    made = 1
end
if not rows[1] or #rows[1] < 34 then put('turn', pack('>I7I7I7I7I4I2', 1, 0, 0, 0, epoch, $FORMAT)) end
if not seen then return {made} end
if layout ~= '' and (rows[2] or '') == seen then put('layout', layout, 'pins', pins) end
-- One that is gone or damaged is made when it is needed, unless another shard knows it.
if not rows[3] or not string.match(rows[3], '^%x+$') then
    if identity ~= '' then
        put('identity', identity)
    elseif rows[3] then
        call('HDEL', $STATE, 'identity')
        made = 1
    end
end
return {made}
