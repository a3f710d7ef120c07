-- open: ends the pause of a queue, or of one of its groups, that a run requested.
-- KEYS: common, the notification key of the queue.
-- ARGV: now, name, gid16 or ''.
-- Answers: 1, or 0 if there is no such queue.
-- Cost: O(log N).
local q, gid = number_of(ARGV[2]), ARGV[3]
if not q then return 0 end
-- A queue must be able to go on when the server is full, too.
drains()
if gid == '' then
    local row = queue(q)
    row.closed, row.hinted = 0, true
else
    rules().group_of(q, gid).closed = 0
    rules().touch_group(q, gid)
    rules().hand_over()
end
announce(q)
return 1
