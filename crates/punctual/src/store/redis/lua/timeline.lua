-- Walks the timeline of a queue, or of one of its groups, level by level.
--
-- A walk has: its queue (`q`); its group (`gid`); the prefix of its members; the level that it has reached; when the
-- first job of that level is due (`due`; nil: not read yet); when the first job of the levels before it is due
-- (`past`).
local function walk_of(q, gid)
    local prefix = gid and q .. char($GROUPED) .. gid or q
    return {q = q, gid = gid, prefix = prefix, level = 0, past = $NEVER, over = queue(q).paused}
end
-- Walks to the first level in which a job is due at `till`. Returns whether there is one.
local function is_due(walk, till)
    while not walk.over do
        if not walk.due then
            local from, to = '[' .. walk.prefix .. char(walk.level), '(' .. walk.prefix .. char($LEVELS)
            local member = walk.level < $LEVELS and call('ZRANGEBYLEX', $TIMELINE, from, to, 'LIMIT', 0, 1)[1]
            if not member then
                walk.over = true
                return false
            end
            if #member == #walk.prefix + 24 then
                walk.level, walk.due = unp('>BI6', member, #walk.prefix + 1)
            elseif not rules().set_aside($TIMELINE, member) then
                -- The next call goes on at once.
                walk.past, walk.over = now, true
            end
        end
        if walk.due then
            if walk.due <= till then return true end
            walk.past, walk.level, walk.due = min(walk.past, walk.due), walk.level + 1, nil
        end
    end
    return false
end
-- Returns how many jobs of a queue can start now, and when the next one can at the earliest: NEVER if a running job
-- must end first (S15). `takes`: the jobs are taken, not reserved.
local function room_of(q, takes)
    local row = queue(q)
    if row.flags < $LIMITED and row.closed <= now then return $NEVER, now end
    return rules().room_of(q, takes)
end
-- Returns when the first job of a walk's queue is due and can start. If a job can start already, returns now.
local function first_due(walk)
    local due = is_due(walk, now) and now or walk.past
    local _, opens = room_of(walk.q)
    if $NEVER <= opens then return $NEVER end
    local row = queue(walk.q)
    if now < due and 0 < row.let and not row.paused then due = min(due, rules().first_group(walk.q)) end
    return due < $NEVER and max(due, opens) or $NEVER
end
-- Notifies that a queue may start jobs which it could not start before. The call names only the
-- queue's notification key. Does the pending writes.
local function announce(q)
    shard.notifications[q] = KEYS[$NOTIFICATIONS]
    local due = first_due(walk_of(q))
    if due < $NEVER then pending().notify(q, due) end
    -- Also if nothing is due.
    pending().put()
end
