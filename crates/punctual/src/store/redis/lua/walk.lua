-- The timeline of a queue, walked level by level.

-- A walk over the waiting jobs of a queue, level by level: where it stands, when the first job there is due (nil: not
-- looked at), and when the first of the levels behind it is.
local function walk_of(q)
    return {q = q, level = 0, past = NEVER, over = queue(q).paused}
end
-- Looks at the first job from where a walk stands.
local function look(walk)
    if walk.due or walk.over then return end
    local _, to = within(walk.q)
    local member = walk.level < LEVELS and call('ZRANGEBYLEX', T, '[' .. walk.q .. char(walk.level), to, 'LIMIT', 0, 1)[1]
    if member then
        walk.level, walk.due = unp('>BI6', member, 4)
    else
        walk.over = true
    end
end
-- Leaves a level in which nothing is due.
local function leave_level(walk)
    walk.past, walk.level, walk.due = min(walk.past, walk.due), walk.level + 1, nil
end
-- When the first job of a walk's queue is due: of what was due and left, only that there is some.
local function first_due(walk)
    look(walk)
    while walk.due and now < walk.due do
        leave_level(walk)
        look(walk)
    end
    return min(walk.past, walk.due or NEVER)
end
