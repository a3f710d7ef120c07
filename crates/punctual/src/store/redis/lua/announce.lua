-- A queue whose bell is the one that was named may start jobs that it could not start before. Writes what is left.
local function announce(q)
    shard.bells[q] = KEYS[BELLS]
    local due = first_due(walk_of(q))
    if due < NEVER then pending().ring(q, due) end
    -- Also where nothing is due.
    pending().put()
end
