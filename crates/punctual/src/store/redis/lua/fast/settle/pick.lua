-- A step of settle_one(): the leases after the ack, and the first due job of no group.
-- The leases after the ack that end first.
local leases = call('ZRANGEBYLEX', $LEASES, '[' .. q, '(' .. q .. '\255', 'LIMIT', 0, $WATCHED_MAX + acks)
others = {}
for _, member in ipairs(leases) do
    if #member < 25 then return end
    if acks == 0 or member ~= acked_place .. acked then others[#others + 1] = member end
end
first = others[1]
till = first and unp('>I6', first, 4) or $NEVER
if till <= now then return end
-- Returns the first due job of the queue or of a group, and when the next one is due: now, if it is. Returns nothing if a member cannot
-- be read. Lower levels come first. Within a level, members are sorted by time, so the first of each level is enough.
local function look(prefix)
    local member, due, level = nil, $NEVER, 0
    while level < $LEVELS do
        local some = call('ZRANGEBYLEX', $TIMELINE, '[' .. prefix .. char(level), '(' .. prefix .. char($LEVELS), 'LIMIT', 0, member and 1 or 2)
        local next, at = some[1], nil
        if not next then break end
        if #next < #prefix + 24 then return end
        level, at = unp('>BI6', next, #prefix + 1)
        if at <= now and not member then
            member, next = next, some[2]
            if not next then break end
            if #next < #prefix + 24 then return end
            level, at = unp('>BI6', next, #prefix + 1)
        end
        if at <= now then return member, now end
        due, level = math.min(due, at), level + 1
    end
    return member, due
end
member, due = look(q)
if not due then return end
