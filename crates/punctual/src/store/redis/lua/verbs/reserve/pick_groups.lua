-- Serves the groups of a queue in turn, for reserve, take, and the reserve after a settle (S16).

-- Does the same as pick(), for all groups of a walk's queue and for the ungrouped jobs, which are a group of weight 1.
-- The walk is that of the ungrouped jobs. One service costs about 16 commands, and other callers wait for the script.
-- `state.services` is how many services are left.
local function pick_groups(walk, most, till, state, each)
    local q, row = walk.q, queue(walk.q)
    if row.let == 0 or row.paused then return pick(walk, most, till, state, each) end
    local before, stale, has_entered = state.n, 0, false
    local function mind_ungrouped() rules().mind_ungrouped(q, is_due(till < now and walk_of(q) or walk, now)) end
    while 0 < state.candidates and not state.stopped and stale < $CANDIDATES_EXTRA do
        local wanted = min(most - (before - state.n), state.n)
        if min(wanted, (room_of(q, state.takes))) <= 0 then break end
        if state.services == 0 then
            state.stopped = true
            break
        end
        if not has_entered then
            rules().let_in(q, min(wanted, state.services) + $GROUPS_EXTRA)
            mind_ungrouped()
            has_entered = true
        end
        local group = rules().first_active(q)
        if not group then
            pick(walk, wanted, till, state, each)
            break
        end
        if 0 < row.ungrouped and row.ungrouped <= group.at and is_due(walk, till) then
            if pick(walk, 1, till, state, each) == 1 then
                rules().charge_ungrouped(q)
                state.services = state.services - 1
            end
            mind_ungrouped()
        else
            local of = walk_of(q, group.gid)
            if not rules().is_open(group) or not is_due(of, now) then
                -- The clock went back, or limits changed.
                rules().regroup(group)
                stale = stale + 1
            elseif not is_due(of, till) then
                rules().leave_active(group)
                state.candidates = state.candidates - 1
            else
                local given = pick(of, 1, till, state, each)
                if given == 1 then
                    rules().charge(group)
                    state.services = state.services - 1
                end
                if till < now then of = walk_of(q, group.gid) end
                if not rules().is_open(group) or not is_due(of, now) then rules().regroup(group) end
            end
        end
    end
    if has_entered then mind_ungrouped() end
    return before - state.n
end
