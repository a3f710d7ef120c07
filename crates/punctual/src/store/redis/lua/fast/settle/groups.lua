-- A step of settle_one(): the groups, as ../../verbs/reserve/pick_groups.lua has them for one service. `turn`: the active group with the lowest
-- tag, by its member in GROUPS_BY_PLACE. `newcomer`: the group that becomes active, and `coming` its place. `gid`: the group that is served,
-- and `place` where it goes.
if has_groups then
    local let
    last_tag, ungrouped, let = unp('>I7I7I7', row, 40)
    if now + 1 < let then return end
    -- Groups that earlier settings blocked, and those whose state can be forgotten, are for the general path.
    local from, to = '[' .. q, '(' .. q
    if 1 < version and call('ZRANGEBYLEX', $GROUPS_BY_PLACE, from .. 'b', to .. 'b' .. pack('>I7', version), 'LIMIT', 0, 1)[1] then return end
    local some, at, beside = call('ZRANGEBYLEX', $GROUPS_BY_PLACE, from .. 'g', to .. 'x', 'LIMIT', 0, 4), 1, nil
    local kind = some[1] and sub(some[1], 4, 4)
    if kind and kind ~= 'r' and kind ~= 'w' then
        -- A state that can be forgotten later, or jobs of a concurrency key.
        if kind == 'g' and (#some[1] ~= 27 or unp('>I7', some[1], 5) <= now) then return end
        some = call('ZRANGEBYLEX', $GROUPS_BY_PLACE, from .. 'r', to .. 'x', 'LIMIT', 0, 4)
    end
    if some[1] and sub(some[1], 4, 4) == 'r' then turn, at = some[1], 2 end
    if turn and some[2] and sub(some[2], 4, 4) == 'r' then beside, at = some[2], 3 end
    local waits, behind = some[at], some[at + 1]
    if beside and waits and sub(waits, 4, 4) == 'r' then
        -- More active groups hide those that wait.
        some = call('ZRANGEBYLEX', $GROUPS_BY_PLACE, from .. 'w', to .. 'x', 'LIMIT', 0, 2)
        waits, behind = some[1], some[2]
    end
    if turn and #turn ~= 27 or waits and #waits ~= 27 or behind and #behind ~= 27 then return end
    local tag, opens = turn and unp('>I7', turn, 5), waits and unp('>I7', waits, 5) or $NEVER
    if opens <= now then
        newcomer, opens = waits, behind and unp('>I7', behind, 5) or $NEVER
        local next = last_tag + $STRIDE - 1
        -- Several at once; or their order is that of their digests.
        if opens <= now or next == tag then return end
        -- Two are active now, if one was: the other one stays beside the one that is served.
        coming, beside = 'r' .. pack('>I7', next), turn
        if not tag or next < tag then turn, tag = newcomer, next end
    end
    -- A group that has used a limiter is for the general path.
    if turn or acked_gid then
        local of = call('HMGET', $GROUPS, q .. (acked_gid or ''), q .. sub(turn or '', 12), q .. sub(newcomer or '', 12))
        if turn and of[2] ~= sub(turn, 4, 11) .. UNLIMITED or newcomer and of[3] ~= sub(newcomer, 4, 11) .. UNLIMITED then return end
        local ended = acked_gid and of[1]
        if ended then
            -- Without limits, the end of a run moves no group: an active one has a due job, because `let` shows no step of the clock.
            local kind = sub(ended, 1, 1)
            if sub(ended, 9) ~= UNLIMITED or kind ~= 'w' and kind ~= 'r' then return end
        end
    end
    ungrouped = member and (0 < ungrouped and ungrouped or last_tag + $STRIDE - 1) or 0
    if not turn then
        if now < due then ungrouped = 0 end
        due = math.min(due, opens)
    elseif member and ungrouped <= tag then
        last_tag, ungrouped, due = ungrouped, due <= now and ungrouped + $STRIDE or 0, now
    else
        gid, last_tag = sub(turn, 12), tag
        local one, first = look(q .. char($GROUPED) .. gid)
        if not one then return end
        place = first <= now and 'r' .. pack('>I7', tag + $STRIDE) or first < $NEVER and 'w' .. pack('>I7', first)
        due = (member or beside or first <= now) and now or math.min(due, first, opens)
        member = one
    end
end
