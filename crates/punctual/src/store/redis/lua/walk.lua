-- The timeline of a queue, walked level by level. A walk: its queue, the level where it stands, when the first job there is
-- due (nil: not looked at), and when the first of the levels behind it is (`past`).
local function walk_of(q)
    return {q = q, level = 0, past = NEVER, over = queue(q).paused}
end
-- Walks to the first level in which a job is due at `till`, if there is one.
local function is_due(walk, till)
    while not walk.over do
        if not walk.due then
            local from, to = '[' .. walk.q .. char(walk.level), '(' .. walk.q .. char(LEVELS)
            local member = walk.level < LEVELS and call('ZRANGEBYLEX', T, from, to, 'LIMIT', 0, 1)[1]
            if not member then
                walk.over = true
                return false
            end
            walk.level, walk.due = unp('>BI6', member, 4)
        end
        if walk.due <= till then return true end
        walk.past, walk.level, walk.due = min(walk.past, walk.due), walk.level + 1, nil
    end
    return false
end
-- When the first job of a walk's queue is due; of what is due already only that there is some.
local function first_due(walk)
    return is_due(walk, now) and now or walk.past
end
