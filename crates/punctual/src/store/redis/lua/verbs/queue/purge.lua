-- purge: deletes waiting jobs until it has read a mebibyte of records. Ungrouped jobs come first, in the order in which
-- they would run. Blocked jobs follow, then the jobs of groups, group by group.
-- KEYS: common.
-- ARGV: now, name, limit.
-- Answers: deleted, more (0 or 1), notifications left to the caller; nothing for an unknown queue.
-- Cost: O(limit log N).
drains()
local q, limit = number_of(ARGV[2]), tonumber(ARGV[3])
if not q then return {} end
local deleted = 0
for _, level in ipairs({0, 1, 2, $BLOCKED, $GROUPED}) do
    local from, to = '[' .. q .. char(level), '(' .. q .. char(level) .. BEHIND
    local left = shard.bytes < $BATCH_BYTES_MAX and limit - deleted or 0
    local members = {}
    if 0 < left and queue(q).lifo and level < $LEVELS then
        members = call('ZREVRANGEBYLEX', $TIMELINE, to, from, 'LIMIT', 0, left)
    elseif 0 < left then
        members = call('ZRANGEBYLEX', $TIMELINE, from, to, 'LIMIT', 0, left)
    end
    for _, member in ipairs(members) do
        local job = rules().load(rules().id_in(member))
        if job and job.state == $WAITING then
            rules().delete(job)
        else
            call('ZREM', $TIMELINE, member)
            if level == $GROUPED and #member == 44 then
                call('ZREM', $GROUPS_BY_PLACE, rules().timed(q, unp('>I6', member, 22), rules().id_in(member)))
                rules().touch_group(q, sub(member, 5, 20))
            end
        end
        deleted = deleted + 1
        if $BATCH_BYTES_MAX <= shard.bytes then break end
    end
end
local notified = put()
-- Members of no level were not written by a script, and are not deleted.
local left = call('ZLEXCOUNT', $TIMELINE, '[' .. q, '(' .. q .. char($LEVELS))
    + call('ZLEXCOUNT', $TIMELINE, '[' .. q .. char($BLOCKED), '(' .. q .. char($BLOCKED + 1))
    + call('ZLEXCOUNT', $TIMELINE, '[' .. q .. char($GROUPED), '(' .. q .. char($GROUPED + 1))
return {deleted, left == 0 and 0 or 1, notified}
