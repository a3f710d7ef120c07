-- Iterates over the queues that hold something, by name, some in one script (S13).

-- Returns the names of the next queues, and where to continue after them ('' after the last). `from`: the second value
-- of the script before, '' for the first one.
local function next_queues(from)
    local QUEUES_MAX = 256 -- a queue with nothing to do costs some thirteen commands
    local names = call('ZRANGEBYLEX', $NAMES, from == '' and '(\1' or from, '+', 'LIMIT', 0, QUEUES_MAX + 1)
    local left = names[QUEUES_MAX + 1]
    names[QUEUES_MAX + 1] = nil
    return names, left and '[' .. left or ''
end
-- Returns the counters of one queue: waiting, retrying, due, running, done, dead, cancelled, bytes.
local function counted(q)
    local function count(key, prefix)
        return call('ZLEXCOUNT', key, '[' .. prefix, '(' .. prefix .. BEHIND)
    end
    local function kept(what) return rules().counter(q .. what) end
    local due = count($TIMELINE, q .. char($BLOCKED)) + call('ZLEXCOUNT', $GROUPS_BY_PLACE, '[' .. q .. 'd', '(' .. q .. 'd' .. pack('>I7', now + 1))
    for level = 0, $LEVELS - 1 do
        due = due + call('ZLEXCOUNT', $TIMELINE, '[' .. q .. char(level), '(' .. q .. pack('>BI6', level, now + 1))
    end
    return {
        count($TIMELINE, q), kept('r'), due, count($LEASES, q), count($ENDED_JOBS, q .. char($DONE)), count($ENDED_JOBS, q .. char($DEAD)),
        count($ENDED_JOBS, q .. char($CANCELLED)), kept('b'),
    }
end
