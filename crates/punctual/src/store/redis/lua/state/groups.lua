-- Groups (S15, S16). The rules are stated in store/model/state/groups.rs.

-- Returns the state of a group: its place (place1 at7; '': none), its limiter as that of a queue, and its limits. A
-- call has one table for each group, which put() writes.
local function group_of(q, gid)
    local groups = shard.groups or {}
    shard.groups = groups
    local group = groups[q .. gid]
    if group then return group end
    group = {q = q, gid = gid, place = '', at = 0, closed = 0, tat = 0, part = 0}
    local row = call('HGET', $GROUPS, q .. gid)
    group.is_known = row ~= false
    -- A row that something else overwrote counts as none: it must not stop a queue.
    if row and #row == 26 then
        group.place, group.at, group.closed, group.tat, group.part = unp('>c1I7I7I7I4', row)
    end
    local limits = limits_of(q).group
    if has(queue(q).flags, $GROUPS_LIMITED) then limits = call('HGET', $SETTINGS, q .. 'g' .. gid) or limits end
    group.weight, group.concurrency, group.rate, group.period, group.burst = unp('>BI7I4I7I4', limits)
    groups[q .. gid] = group
    return group
end
-- Writes the groups that changed.
local function put_groups()
    for of, group in pairs(shard.groups or {}) do
        if group.place ~= '' then
            call('HSET', $GROUPS, of, pack('>c1I7I7I7I4', group.place, group.at, group.closed, group.tat, group.part))
        elseif group.is_known then
            call('HDEL', $GROUPS, of)
        end
    end
    shard.groups = nil
end
shard.put_groups = put_groups
-- Returns the instant from which a group can start a job. If it can now, it is a past one. NEVER if a running job must end first.
local function group_opens(group)
    if 0 < group.concurrency and group.concurrency - 1 <= run_of_key(group.q .. group.gid) then return $NEVER end
    return opening(group)
end
local function is_open(group) return group_opens(group) <= now end
-- Returns when the first waiting job of a group is due.
local function first_of_group(group)
    local prefix, first, level = group.q .. char($GROUPED) .. group.gid, $NEVER, 0
    while level < $LEVELS do
        local member = whole('ZRANGEBYLEX', $TIMELINE, '[' .. prefix .. char(level), '(' .. prefix .. char($LEVELS), 1, 44)[1]
        if not member then break end
        local run_at
        level, run_at = unp('>BI6', member, 21)
        first, level = min(first, run_at), level + 1
    end
    return first
end
-- Moves a group to another place.
local function move(group, place, at)
    local function member() return group.q .. group.place .. pack('>I7', group.at) .. group.gid end
    if group.place ~= '' then call('ZREM', $GROUPS_BY_PLACE, member()) end
    group.place, group.at = place, at
    if place ~= '' then call('ZADD', $GROUPS_BY_PLACE, '0', member()) end
end
-- Puts a group in the place where it belongs:
--   r: active, by its tag
--   w: waiting, by when its first job is due and can start
--   b: blocked by its running jobs, by the version of the settings
--   g: without jobs, by when its limiter can be forgotten
--   none: without jobs or state
local function regroup(group)
    local q = group.q
    local row = queue(q)
    if row.let == 0 then row.let, row.hinted = 1, true end
    local first, opens = first_of_group(group), group_opens(group)
    if first == $NEVER then
        -- The state is kept through its last millisecond, in case the clock goes back in it.
        local last = max(group.closed, group.tat)
        local is_kept = now <= last
        return move(group, is_kept and 'g' or '', is_kept and last + 1 or 0)
    end
    if opens == $NEVER then return move(group, 'b', row.version) end
    -- That it is closed follows from the clock, too. If the clock goes back, the group is checked again.
    if now < opens then row.let, row.hinted = max(row.let, now + 1), true end
    local at = max(first, opens)
    -- A job that was due at the last activation counts as due until the next one, even if the clock goes back. So does one that came
    -- later and keeps its group active.
    if group.place == 'r' and at <= max(now, row.let - 1) then
        if row.let <= at then row.let, row.hinted = at + 1, true end
        return
    end
    if group.place == 'w' and group.at == at then return end
    move(group, 'w', at)
    notify(q, at)
end
-- Returns the tag of a group that is activated.
local function come(row, weight) return row.time + math.floor($STRIDE / weight) - 1 end
-- Returns the members of GROUPS_BY_PLACE in one place of a queue, up to `till`, at most `limit`. NEVER stands for all of them: tags go on
-- behind it. A group that does not stand there by its own row is put where it belongs, by hand_over().
local function groups_in(q, place, till, limit)
    local to = till < $NEVER and place .. pack('>I7', till + 1) or char(byte(place) + 1)
    while true do
        local is_sound = true
        local members = whole('ZRANGEBYLEX', $GROUPS_BY_PLACE, '[' .. q .. place, '(' .. q .. to, limit, 27)
        for _, member in ipairs(members) do
            local group = group_of(q, sub(member, 12))
            if group.place .. pack('>I7', group.at) ~= sub(member, 4, 11) then
                touch_group(q, group.gid)
                if not set_aside($GROUPS_BY_PLACE, member) then return {} end
                is_sound = false
            end
        end
        if is_sound then return members end
    end
end
local function group_in(q, member) return group_of(q, sub(member, 12)) end
-- Returns the groups whose places depend on the clock, up to a bound of each place. All are read before one of them is moved.
local function groups_by_time(q)
    local groups = {}
    for place in string.gmatch('rw', '.') do
        for _, member in ipairs(groups_in(q, place, $NEVER, $REGROUP_MAX)) do groups[#groups + 1] = group_in(q, member) end
    end
    return groups
end
-- Returns whether some group is blocked under earlier settings, and may not be under these.
local function was_blocked(q) return groups_in(q, 'b', queue(q).version - 1, 1)[1] ~= nil end
-- Activates groups whose first job is due and can start. Checks again some groups that are blocked under earlier
-- settings, and some whose state can be forgotten.
local function let_in(q, most)
    local row = queue(q)
    local before = row.let
    row.let, row.hinted = now + 1, true
    if now + 1 < before then
        -- The clock went back: jobs of active groups may not be due any more, and pauses may be void.
        for _, group in ipairs(groups_by_time(q)) do regroup(group) end
    end
    for _, member in ipairs(groups_in(q, 'b', row.version - 1, $GROUPS_EXTRA)) do regroup(group_in(q, member)) end
    for _, member in ipairs(groups_in(q, 'g', now, most)) do regroup(group_in(q, member)) end
    for _, member in ipairs(groups_in(q, 'w', now, most)) do
        local group = group_in(q, member)
        -- A limiter that was void when the group got its place may hold it back by now (opening() in limits.lua).
        if is_open(group) then move(group, 'r', come(row, group.weight)) else regroup(group) end
    end
end
-- Activates the ungrouped jobs as one group if some are due again, and deactivates them otherwise.
local function mind_ungrouped(q, is_due)
    local row = queue(q)
    local ungrouped = is_due and (0 < row.ungrouped and row.ungrouped or come(row, 1)) or 0
    if ungrouped ~= row.ungrouped then row.ungrouped, row.hinted = ungrouped, true end
end
local function first_active(q)
    local member = groups_in(q, 'r', $NEVER, 1)[1]
    return member and group_in(q, member)
end
-- Deactivates a group that has jobs which can start, until it is activated again.
local function leave_active(group) move(group, 'w', max(first_of_group(group), group_opens(group))) end
-- Charges the start of a job to its group, or to the ungrouped jobs.
local function charge(group)
    local row = queue(group.q)
    row.time, row.hinted = group.at, true
    if 0 < group.rate then spend_rate(group, 1) end
    move(group, 'r', group.at + math.floor($STRIDE / group.weight))
end
local function charge_ungrouped(q)
    local row = queue(q)
    row.time, row.ungrouped, row.hinted = row.ungrouped, row.ungrouped + $STRIDE, true
end
-- Returns when the first group of a queue can start a job.
local function first_group(q)
    if now + 1 < queue(q).let then
        -- The clock went back: the places of groups may be wrong.
        local first = $NEVER
        for _, group in ipairs(groups_by_time(q)) do
            local due, opens = first_of_group(group), group_opens(group)
            first = min(first, max(due, opens))
        end
        return was_blocked(q) and min(first, now) or first
    end
    local first, place
    repeat
        first = whole('ZRANGEBYLEX', $GROUPS_BY_PLACE, '[' .. q .. 'r', '(' .. q .. 'x', 1, 27)[1]
        place = first and sub(first, 4, 4)
        local is_sound = not first or place == 'r' or place == 'w'
    until is_sound or not set_aside($GROUPS_BY_PLACE, first)
    if place == 'r' or was_blocked(q) then return now end
    if not first then return $NEVER end
    -- Time alone can have closed a group since it got its place: see let_in().
    local function starts(member) return max(unp('>I7', member, 5), group_opens(group_in(q, member))) end
    local opens = starts(first)
    if opens <= max(unp('>I7', first, 5), now) then return opens end
    for _, member in ipairs(groups_in(q, 'w', $NEVER, $REGROUP_MAX)) do
        if opens <= max(unp('>I7', member, 5), now) then return opens end
        opens = min(opens, starts(member))
    end
    return opens
end
-- Handles new settings: the limits of groups may have changed. Groups beyond these follow later.
local function look_at_groups(q)
    for place in string.gmatch('rwb', '.') do
        for _, member in ipairs(groups_in(q, place, $NEVER, $REGROUP_MAX)) do touch_group(q, sub(member, 12)) end
    end
end
-- Returns whether a waiting job is due, and held back.
local function is_blocked(job)
    if job.state ~= $WAITING or now < job.run_at or call('HEXISTS', $SETTINGS, job.q) == 0 then return false end
    return is_full(job) or room_of(job.q) <= 0 or job.gid and not is_open(group_of(job.q, job.gid))
end

-- Re-checks the first blocked job of the key for each event, and the next one if it is not due any more, and puts groups with
-- events where they belong. Returns whether some job is back in the timeline.
local function hand_over()
    local touched, any = shard.touched or {}, false
    shard.touched = nil
    for _, of in ipairs(touched) do
        local q = sub(of, 1, 3)
        for _ = 1, $RECHECK_MAX do
            local first = first_blocked(q .. char($BLOCKED) .. sub(of, 4), queue(q).lifo)
            if not (first and (#first == 48 or #first == 64) and run_of_key(of) < unp('>I4', first, 45)) then break end
            local run_at, gid = unp('>I6', first, 22), sub(first, 49)
            call('ZREM', $TIMELINE, first)
            call('ZADD', $TIMELINE, '0', q .. (gid ~= '' and char($GROUPED) .. gid or '') .. sub(first, 21, 44))
            if gid ~= '' then
                call('ZADD', $GROUPS_BY_PLACE, '0', timed(q, run_at, sub(first, 28, 43)))
                touch_group(q, gid)
            end
            notify(q, run_at)
            any = true
            if run_at <= now then break end
        end
    end
    local changed = shard.changed or {}
    shard.changed = nil
    for of in pairs(changed) do regroup(group_of(sub(of, 1, 3), sub(of, 4))) end
    return any
end
shard.hand_over = hand_over

rules.group_of, rules.is_open, rules.regroup, rules.let_in, rules.mind_ungrouped, rules.first_active = group_of, is_open, regroup, let_in, mind_ungrouped, first_active
rules.leave_active, rules.charge, rules.charge_ungrouped, rules.first_group, rules.look_at_groups = leave_active, charge, charge_ungrouped, first_group, look_at_groups
rules.is_blocked, rules.hand_over = is_blocked, hand_over
