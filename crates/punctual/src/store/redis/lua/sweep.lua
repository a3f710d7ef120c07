-- sweep: bounded upkeep (S17). KEYS: common. ARGV: now, limit, 1 to give up done and cancelled jobs
-- whatever their age. Answers: expired, removed, forgotten, more (0 or 1).
-- Cost: O(queues + limit log N).
drains()
read_turn()
local named = {}
for i, name in ipairs(call('ZRANGE', N, 0, -1)) do named[i] = call('HGET', Q, name) end
late().sweep(named, tonumber(ARGV[2]), true, ARGV[3] == '1')
put_turn()
put()
local swept = shard.swept
return {swept.expired, swept.removed, swept.forgotten, swept.more and 1 or 0}
