-- The timeline of a queue, or of one of its groups, walked level by level. A walk: its queue, its group, what its members begin
-- with, the level where it stands, when the first job there is due (nil: not looked at), and when the first of the levels behind
-- it is (`past`).
local function walk_of(q, gid)
    local prefix = gid and q .. char(GROUPED) .. gid or q
    return {q = q, gid = gid, prefix = prefix, level = 0, past = NEVER, over = queue(q).paused}
end
-- Walks to the first level in which a job is due at `till`, if there is one.
local function is_due(walk, till)
    while not walk.over do
        if not walk.due then
            local from, to = '[' .. walk.prefix .. char(walk.level), '(' .. walk.prefix .. char(LEVELS)
            local member = walk.level < LEVELS and call('ZRANGEBYLEX', TIMELINE, from, to, 'LIMIT', 0, 1)[1]
            if not member then
                walk.over = true
                return false
            end
            walk.level, walk.due = unp('>BI6', member, #walk.prefix + 1)
        end
        if walk.due <= till then return true end
        walk.past, walk.level, walk.due = min(walk.past, walk.due), walk.level + 1, nil
    end
    return false
end
-- How many jobs of a queue may start now, by a take or not, and when the next one may at the earliest: NEVER where one of those
-- that run must end first (S15).
local function room_of(q, takes)
    local row = queue(q)
    if row.flags < LIMITED and row.closed <= now then return NEVER, now end
    return rules().room_of(q, takes)
end
-- When the first job of a walk's queue is due and may start; of what may already only that there is some.
local function first_due(walk)
    local due = is_due(walk, now) and now or walk.past
    local _, opens = room_of(walk.q)
    if NEVER <= opens then return NEVER end
    local row = queue(walk.q)
    if now < due and 0 < row.let and not row.paused then due = min(due, rules().first_group(walk.q)) end
    return due < NEVER and max(due, opens) or NEVER
end
-- A queue whose bell is the one that was named may start jobs that it could not start before. Writes what is left.
local function announce(q)
    shard.bells[q] = KEYS[BELLS]
    local due = first_due(walk_of(q))
    if due < NEVER then pending().ring(q, due) end
    -- Also where nothing is due.
    pending().put()
end
