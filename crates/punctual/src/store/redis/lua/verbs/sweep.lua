-- sweep: does bounded upkeep (S17) of some queues at a time, and after the last of them of the whole store.
-- KEYS: common.
-- ARGV: now, limit, 1 to remove done and cancelled jobs whatever their age, where to go on or ''.
-- Answers: where to go on or '', expired, removed, forgotten, notifications left to the caller.
-- It stops at the limit, and after a mebibyte of records. Then it goes on in the same queue, because the next parts
-- there depend on what ended. Cost: O(queues + limit log N).
drains()
local names, from = next_queues(ARGV[4])
local named = {}
for i, name in ipairs(names) do named[i] = call('HGET', $QUEUES, name) end
local stopped = rules().sweep(named, tonumber(ARGV[2]), {names = names, is_last = from == '', ageless = ARGV[3] == '1'})
if stopped then from = '[' .. names[stopped] end
put_shard()
local notified, swept = put(), shard.swept
return {from, swept.expired, swept.removed, swept.forgotten, notified}
