-- show: returns a queue as it is.
-- KEYS: common.
-- ARGV: now, name.
-- Answers: now; and if the queue exists: settings, when its oldest due job became due or '', until when rate and pause
--   allow no start or '', counters as counted() returns them.
-- Cost: O(log N).
local q = call('HGET', $QUEUES, ARGV[2])
if not q then return {string.format('%.0f', now)} end
local walk = walk_of(q)
walk.over = false -- also for a paused queue
is_due(walk, -1) -- no job was due then, so it passes the first job of each level
local of_groups = call('ZRANGEBYLEX', $GROUPS_BY_PLACE, '[' .. q .. 'd', '(' .. q .. 'e', 'LIMIT', 0, 1)[1]
local oldest = min(walk.past, of_groups and unp('>I7', of_groups, 5) or $NEVER)
local _, _, opens = rules().room_of(q)
return {
    string.format('%.0f', now), rules().settings_of(q), oldest <= now and string.format('%.0f', oldest) or '',
    now < opens and string.format('%.0f', opens) or '', unpack(counted(q)),
}
