-- Returns whether jobs are blocked by a concurrency key, or by any: a start and an end of a run hands its place to one of them.
local function is_awaited(q, key)
    local prefix = q .. string.char($BLOCKED) .. key
    return redis.call('ZRANGEBYLEX', $TIMELINE, '[' .. prefix, '(' .. prefix .. string.rep('\255', 17), 'LIMIT', 0, 1)[1] ~= nil
end
-- The fast path of reserve and settle: at most one bare ack, then a reserve of at most one job in the same queue; or the ack alone. The
-- queue has no limits, no lease in it has expired, and no upkeep is due. Neither job has a history, and the reserved one no expiry. No job
-- is blocked by their concurrency keys. A unique key of the reserved job is held until it is done. Groups have no limits, at most one of
-- them comes to be due, and the ack moves none; an ack alone is in a queue without groups. Arguments and answers are those of
-- ../../verbs/settle.lua and ../../verbs/reserve/numbered.lua. A share matters only beside
-- other queues, and company only to a job with a history.
-- `acks`: 1, or 0; `from`: where the arguments of the reserve begin, if there is one.
-- For any other call it returns nil before its first write, and the rest of the script answers: the general path. Both leave the
-- same keys, byte by byte, so a rule that changes there changes here.
-- Flags of a queue and lengths of rows: see queue() and read_shard() in ../../base.lua; of runs and records: ../../state/codec.lua.
-- Cost: O(log N), 10 to 27 commands; with concurrency keys, up to 8 more; with groups, up to 19 more.
-- Its steps follow each other within one function: a function of its own for each would cost more than some of them.
local function settle_one(acks, from)
    local reserves = acks == 0 or from <= #ARGV
    -- A caller that trusts no time of others is for the general path.
    if reserves and (#ARGV ~= from + 9 or ARGV[from + 9] == '?') then return end
    local call, pack, unp, sub, char, byte = redis.call, struct.pack, struct.unpack, string.sub, string.char, string.byte
    local function text(n) return string.format('%.0f', n) end
