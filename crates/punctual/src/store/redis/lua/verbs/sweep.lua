-- sweep: does bounded upkeep (S17) of some queues at a time, and after the last of them of the whole store.
-- KEYS: common.
-- ARGV: now, limit, 1 to remove done and cancelled jobs whatever their age, where to go on or ''.
-- Answers: where to go on or '', reclaimed, expired, removed, forgotten, in how many ms expired leases that a silence holds back can be
--   reclaimed (NEVER: there are none), notifications left to the caller.
-- It stops at the limit, and after a mebibyte of records. Then it goes on in the same queue, because the next parts
-- there depend on what ended. Cost: O(queues + limit log N).
drains()
local names, from = next_queues(ARGV[4])
local named, known = {}, {}
for _, name in ipairs(names) do
    local q = number_of(name)
    if q then
        named[#named + 1], known[#named + 1] = q, name
    else
        rules().set_aside($NAMES, name)
    end
end
names = known
local slice = {names = names, is_last = from == '', ageless = ARGV[3] == '1', next_reclaim = $NEVER}
mark()
local stopped = rules().sweep(named, tonumber(ARGV[2]), slice)
if stopped then from = '[' .. names[stopped] end
put_shard()
local notified, swept = put(), shard.swept
local next_reclaim = slice.next_reclaim < $NEVER and max(slice.next_reclaim - now, 0) or $NEVER
return {from, swept.reclaimed, swept.expired, swept.removed, swept.forgotten, string.format('%.0f', next_reclaim), notified}
