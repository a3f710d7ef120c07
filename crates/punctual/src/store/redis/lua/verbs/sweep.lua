-- sweep: bounded upkeep (S17): of some queues at a time, behind the last of them store-wide. KEYS: common. ARGV: now, limit, 1
-- to give up done and cancelled jobs whatever their age, where to go on or ''. Answers: where to go on or '', expired, removed,
-- forgotten, rings left to the caller. Stops at the limit, and behind a mebibyte of records: then it goes on in the same
-- queue, since what comes next there goes by what ended. Cost: O(queues + limit log N).
drains()
local names, from = next_queues(ARGV[4])
local named = {}
for i, name in ipairs(names) do named[i] = call('HGET', QUEUES, name) end
local stopped = rules().sweep(named, tonumber(ARGV[2]), {names = names, is_last = from == '', ageless = ARGV[3] == '1'})
if stopped then from = '[' .. names[stopped] end
put_turn()
local rings, swept = put(), shard.swept
return {from, swept.expired, swept.removed, swept.forgotten, rings}
