-- The beginning of the scripts of tools: reads the time. These scripts share nothing with those of jobs, so they do not
-- make what those need. All their keys are in shard 0.
-- ARGV[1]: now in Unix ms, or '' for the server's clock (S14).
-- A value that is over expires a millisecond later by the server's clock. With a clock of the caller, which can go
-- back, it expires a day later. So each value also says itself when it is over.
local call, pack, unp = redis.call, struct.pack, struct.unpack
local sub, floor, max = string.sub, math.floor, math.max
local now, stays = tonumber(ARGV[1]), 86400000
if not now then
    local t = call('TIME')
    now, stays = t[1] * 1000 + floor(t[2] / 1000), 1
end
local function text(n) return string.format('%.0f', n) end
local function lasting(ends) return text(max(ends - now, 0) + stays) end
