-- show: a queue as it is. KEYS: common. ARGV: now, name. Answers: now; and if there is one: settings, when its oldest due
-- job became due or '', counters as counted(). Cost: O(log N).
local q = call('HGET', Q, ARGV[2])
if not q then return {text(now)} end
local walk = walk_of(q)
walk.over = false -- also of a paused queue
look(walk)
while walk.due do
    leave_level(walk)
    look(walk)
end
local oldest = walk.past
return {text(now), queue(q).stored, oldest <= now and text(oldest) or '', unpack(counted(q))}
