-- The fast path of extend: one lease, nothing new but its end, and that not earlier. The shard is read before: see shard.lua. Arguments and
-- answers are those of ../verbs/extend.lua.
-- For any other call it returns nil before its first write, and the rest of the script answers: the general path. Both leave the
-- same keys, byte by byte, so a rule that changes there changes here. The row of a run: see run_of() in ../state/codec.lua.
-- Cost: O(log N), 6 commands.
if #ARGV ~= 3 or ARGV[2] ~= '0' or #ARGV[3] ~= 29 then return end
local right, id, company, asked = unp('>c8c16c1I4', ARGV[3])
local run = call('HGET', $RUNS, id)
if company == '1' or not run or #run < 32 or sub(run, 1, 8) ~= right then return end
local q, till, flags, rest, lasts = unp('>c3I6Bc10I4', run, 9)
if 0 < asked then lasts = asked end
local ends = math.min(now + lasts, $INSTANT_MAX_MS)
if ends < till then return end
-- The first write lets a full server go on: see drains() in ../base.lua.
call('ZREM', $LEASES, q .. pack('>I6', till) .. id)
call('ZADD', $LEASES, '0', q .. pack('>I6', ends) .. id)
call('HSET', $RUNS, id, right .. pack('>c3I6Bc10I4', q, ends, flags, rest, lasts) .. sub(run, 33))
