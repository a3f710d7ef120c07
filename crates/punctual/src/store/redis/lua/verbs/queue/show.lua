-- show: returns a queue as it is.
-- KEYS: common.
-- ARGV: now, name.
-- Answers: now; and if the queue exists: settings, when its oldest due job became due or '', the same of its blocked
--   jobs, until when rate and pause allow no start or '', counters as counted() returns them.
-- Cost: O(log N) for each key with blocked jobs, of which it reads at most BLOCKED_SEARCH_MAX.
local q = number_of(ARGV[2])
if not q then return {string.format('%.0f', now)} end
local walk = walk_of(q)
walk.over = false -- also for a paused queue
is_due(walk, -1) -- no job was due then, so it passes the first job of each level
local of_groups = rules().whole('ZRANGEBYLEX', $GROUPS_BY_PLACE, '[' .. q .. 'd', '(' .. q .. 'e', 1, 27)[1]
local oldest = min(walk.past, of_groups and unp('>I7', of_groups, 5) or $NEVER)
local blocked, from = $NEVER, '[' .. q .. char($BLOCKED)
for _ = 1, $BLOCKED_SEARCH_MAX do
    local first = rules().whole('ZRANGEBYLEX', $TIMELINE, from, '(' .. q .. char($BLOCKED + 1), 1, 48, 64)[1]
    if not first then break end
    blocked = min(blocked, (unp('>I6', first, 22))) -- without the position that it returns, too
    from = '[' .. sub(first, 1, 21) .. BEHIND -- after all of its key and level
end
local _, _, opens = rules().room_of(q)
return {
    string.format('%.0f', now), rules().settings_of(q), oldest <= now and string.format('%.0f', oldest) or '',
    blocked < $NEVER and string.format('%.0f', blocked) or '',
    now < opens and string.format('%.0f', opens) or '', unpack(counted(q)),
}
