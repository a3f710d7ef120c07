-- What the scripts of tools do first: they ask what time it is. They share nothing with the scripts of jobs, so that they need not
-- set up what these need. All their keys are in shard 0.
-- ARGV[1]: now in Unix ms, or '' for the server's clock (S14). What came to its end goes by the server's clock, a millisecond later;
-- by a clock of the caller's, which may go back, a day later: so every value says itself when it ends.
local call, pack, unp = redis.call, struct.pack, struct.unpack
local sub, floor, max = string.sub, math.floor, math.max
local now, stays = tonumber(ARGV[1]), 86400000
if not now then
    local t = call('TIME')
    now, stays = t[1] * 1000 + floor(t[2] / 1000), 1
end
local function text(n) return string.format('%.0f', n) end
local function lasting(ends) return text(max(ends - now, 0) + stays) end
