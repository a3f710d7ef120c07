-- The counters of one queue: waiting, retrying, due, running, done, dead, cancelled, bytes.
local function counted(q)
    local function count(key, prefix)
        return call('ZLEXCOUNT', key, '[' .. prefix, '(' .. prefix .. BEHIND)
    end
    local function kept(what) return late().counter(q .. what) end
    local due = count(T, q .. char(PARKED)) + call('ZLEXCOUNT', H, '[' .. q .. 'd', '(' .. q .. 'd' .. pack('>I7', now + 1))
    for level = 0, LEVELS - 1 do
        due = due + call('ZLEXCOUNT', T, '[' .. q .. char(level), '(' .. q .. pack('>BI6', level, now + 1))
    end
    return {
        count(T, q), kept('r'), due, count(L, q), count(E, q .. char(DONE)), count(E, q .. char(DEAD)),
        count(E, q .. char(CANCELLED)), kept('b'),
    }
end
