-- A step of the fast paths: the clock and the shard, as read_shard() and mark() in ../base.lua see them.
local now, into = tonumber(ARGV[1]), 0
if not now then
    local t = call('TIME')
    now, into = t[1] * 1000 + math.floor(t[2] / 1000), t[2] % 1000
end
-- In another format, nothing else is read.
local turn = call('HGET', $STATE, 'turn')
if not turn or #turn < 34 then return end
local seen, grace, fence, wide, epoch, format = unp('>I7I7I7I7I4I2', turn)
-- Leases that end too late, because the clock went back, are for the general path. So is a mark after which the clock may be doubted.
local silences = noted(sub(turn, 35), seen - 1, now)
if 0 < seen and (seen - 1 + $STEP_MIN < now or now + $STEP_BACK_MIN < seen - 1) then return end
if format ~= $FORMAT or silences ~= '' and now < unp('>I7', silences) then return end
