-- Walks over the due times of waiting jobs, of one queue or of all, some in one script (S13).

-- How many commands one script may send, about. One place, see below, can add two for each bucket.
local left = $WALK_COMMANDS
-- Calls add(0, jobs) for jobs that are due, then add(bucket, jobs) for others before `stop`: bucket 1 begins now, and each has
-- this width. Returns where to go on ('' at the end). `q`: a queue, or '' for all; `from`: what the script before returned.
--
-- A place is what sorts by time: the jobs of a queue that are blocked, those of one of its levels, and those of all its groups.
-- One whose first job is not before `stop` costs one command, however many jobs it has.
local function walk(q, from, stop, width, add)
    local BY_TIME = byte('d') -- see key_names.lua
    local SOME = 32 -- fewer jobs of a place are read; of more, the jobs of each bucket are counted
    local key, at = sub(from, 1, 1), sub(from, 2)
    if from == '' then key, at = 't', '[' .. q end
    while 0 < left do
        local grouped = key == 'h'
        local set = grouped and $GROUPS_BY_PLACE or $TIMELINE
        local first = call('ZRANGEBYLEX', set, at, '(' .. (q == '' and LAST or q .. BEHIND), 'LIMIT', 0, 1)[1]
        left = left - 1
        local place, prefix = first and byte(first, 4), first and sub(first, 1, 4)
        if not first then
            if grouped then return '' end
            key, at = 'h', '[' .. q
        elseif grouped and place < BY_TIME then
            at = '[' .. sub(first, 1, 3) .. char(BY_TIME)
        elseif grouped and BY_TIME < place or not grouped and $BLOCKED < place then
            at = '(' .. sub(first, 1, 3) .. BEHIND -- the next queue
        else
            at = '(' .. prefix .. BEHIND
            local function count(to) return call('ZLEXCOUNT', set, '[' .. first, '(' .. to) end
            if place == $BLOCKED then
                add(0, count(prefix .. BEHIND)) -- blocked jobs are due
                left = left - 1
            else
                local time = grouped and '>I7' or '>I6'
                local function bound(ms) return prefix .. pack(time, ms) end
                local due = unp(time, first, 5)
                if due <= now then
                    add(0, count(bound(now + 1)))
                    left = left - 1
                    due = now + 1
                end
                local function bucket_of(member) return math.floor((unp(time, member, 5) - now) / width) + 1 end
                local some = {}
                if due < stop then
                    some = call('ZRANGEBYLEX', set, '[' .. bound(due), '(' .. bound(stop), 'LIMIT', 0, SOME)
                    left = left - 1
                end
                if #some < SOME then
                    for _, member in ipairs(some) do add(bucket_of(member), 1) end
                else
                    first = some[1]
                    while first do
                        local bucket = bucket_of(first)
                        local behind = min(now + bucket * width, stop)
                        add(bucket, count(bound(behind)))
                        first = behind < stop and call('ZRANGEBYLEX', set, '[' .. bound(behind), '(' .. bound(stop), 'LIMIT', 0, 1)[1]
                        left = left - 2
                    end
                end
            end
        end
    end
    return key .. at
end
