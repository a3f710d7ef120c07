-- Walks over the due times of waiting jobs, of one queue or of all, some in one script (S13).

-- How many commands one script may send, about: one place, see below, can go beyond.
local left = $WALK_COMMANDS
-- Returns where to go on behind everything that begins with this: no member can make that the same place again.
local function beyond(prefix)
    local kept = string.match(prefix, '^(.-)\255*$')
    if kept == '' then return '(' .. LAST end
    return '[' .. sub(kept, 1, -2) .. char(byte(kept, -1) + 1)
end
-- Calls add(0, jobs) for jobs that are due, then add(bucket, jobs) for others before `stop`: bucket 1 begins now, and each has
-- this width. Returns where to go on ('' at the end). `q`: a queue, or '' for all; `from`: what the script before returned.
--
-- A place is what sorts by time: the jobs of a queue that are blocked, those of one of its levels, and those of all its groups.
-- One whose first job is not before `stop` costs one command, however many jobs it has.
local function walk(q, from, stop, width, add)
    local BY_TIME = byte('d') -- see key_names.lua
    local SOME = 128 -- fewer jobs of a place are read at once; those of a bucket that has more are counted
    local LENGTH_MIN = 11 -- no member of a place is shorter; what is, another program wrote
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
        elseif #first < LENGTH_MIN then
            at = '(' .. first
        elseif grouped and place < BY_TIME then
            at = '[' .. sub(first, 1, 3) .. char(BY_TIME)
        elseif grouped and BY_TIME < place or not grouped and $BLOCKED < place then
            at = beyond(sub(first, 1, 3)) -- the next queue
        else
            at = beyond(prefix)
            local function count(begin, to)
                left = left - 1
                return call('ZLEXCOUNT', set, begin, to)
            end
            if place == $BLOCKED then
                add(0, count('[' .. first, '(' .. prefix .. BEHIND)) -- blocked jobs are due
            else
                local time = grouped and '>I7' or '>I6'
                local function bound(ms) return prefix .. pack(time, ms) end
                local function bucket_of(member) return math.floor((unp(time, member, 5) - now) / width) + 1 end
                local due = unp(time, first, 5)
                if due <= now then
                    add(0, count('[' .. first, '(' .. bound(now + 1)))
                    due = now + 1
                end
                while due < stop do
                    local some = call('ZRANGEBYLEX', set, '[' .. bound(due), '(' .. bound(stop), 'LIMIT', 0, SOME)
                    left = left - 1 - #some / 16
                    if #some == 0 then break end
                    local is_all = #some < SOME
                    local last = bucket_of(some[#some])
                    if not is_all and bucket_of(some[1]) == last then
                        local behind = min(now + last * width, stop)
                        add(last, count('[' .. bound(due), '(' .. bound(behind)))
                        due = behind
                    else
                        for _, member in ipairs(some) do
                            local bucket = bucket_of(member)
                            if is_all or bucket < last then add(bucket, 1) end
                        end
                        due = is_all and stop or now + (last - 1) * width
                    end
                end
            end
        end
    end
    return key .. at
end
