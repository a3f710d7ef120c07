-- misplaced: one step of the search for misplaced jobs: jobs that only an earlier number of shards leads to.
-- When the search of an epoch is over, the shard has none and gets none. Under one layout, a job is put where an
-- earlier number leads in only one case: beside others of its group or concurrency key. That is kind f of enqueue.lua.
-- It removes the row of the search, so the search starts again.
-- KEYS: common.
-- ARGV: now, epoch, 16 random bytes, how many records to read (0: only note what the caller found), then what the
--   caller found in the last step: the row of the search, and the id of a misplaced job or ''.
-- Answers: the row of the search, '' if there is nothing more to do now; then per record its id, and the scope of its
--   unique key, which says what places the job ('' if that cannot be read).
-- The row: epoch4, phase1, then by phase:
--   p  server from token16 next  a caller has the records from `from` to `next`, and judges them
--   h  server from id            this job is misplaced; the search waits at `from` until the job is gone
--   m  bound7 most7 name         no job is misplaced; what the shard remembers is checked, queue by queue. `most` is when the
--                                last of it is over, among what is over by `bound` (0: among all). This is repeated after
--                                `most` until nothing is left.
--   c                            the search is over
-- `server` is the server's run_id. Records are read in the order of a hash, and each server process has its own order.
-- Queues are read in the order of their names. A queue that is missed held nothing at some time after the last record
-- was read.
-- Cost: O(records), or O(queues log N).
local epoch, token, limit, seen, misplaced = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local SCAN = $READ_AT_ONCE
if epoch ~= shard.epoch then return {''} end
local of_epoch = pack('>I4', epoch)
local function leave(phase, rest)
    drains()
    call('HSET', $STATE, 'search', of_epoch .. phase .. rest)
    return of_epoch .. phase .. rest
end
local row, phase, rest = call('HGET', $STATE, 'search'), '', ''
if row and sub(row, 1, 4) == of_epoch then phase, rest = sub(row, 5, 5), sub(row, 6) end
if phase == 'c' then return {''} end
if phase == 'm' and #rest < 14 then phase = '' end
-- Another caller continues it.
if seen ~= '' and row ~= seen then return {''} end

local function within_of(rec)
    local is_sound, within = pcall(function()
        local job = {}
        rules().head(job, rec)
        local at = rules().behind_chunk(rec, job.asked_at)
        return sub(rec, at, rules().behind_chunk(rec, at) - 1)
    end)
    return is_sound and within or ''
end
local function records()
    -- Without the permission to run INFO, the search cannot go on. The shard numbers stay.
    local is_told, info = pcall(call, 'INFO', 'server')
    local server = is_told and string.match(info, 'run_id:(%x+)')
    if not server then return {''} end
    local of, from, mark = string.match(rest, '^(%x+) (%d+) (.*)$')
    if of ~= server then
        from = '0'
    elseif phase == 'h' and call('HEXISTS', $RECORDS, mark) == 1 then
        return {''}
    elseif phase == 'p' and seen ~= '' and misplaced ~= '' then
        leave('h', server .. ' ' .. from .. ' ' .. misplaced)
        return {''}
    elseif phase == 'p' and seen ~= '' then
        from = sub(mark, 17)
        if from == '0' then return {leave('m', pack('>I7I7', 0, 0))} end
    end
    if limit == 0 then
        leave('h', server .. ' ' .. from .. ' ')
        return {''}
    end
    local page, next, bytes = {''}, from, 0
    repeat
        local some = call('HSCAN', $RECORDS, next, 'COUNT', SCAN)
        next = some[1]
        for i = 1, #some[2], 2 do
            page[#page + 1], page[#page + 2] = some[2][i], within_of(some[2][i + 1])
            bytes = bytes + #some[2][i + 1]
        end
    until next == '0' or 2 * limit < #page or $BATCH_BYTES_MAX <= bytes
    page[1] = leave('p', server .. ' ' .. from .. ' ' .. token .. next)
    return page
end

-- Returns when the last member of a prefix is over, among those that are over by `bound`; 0 if there is none. `lasts`:
-- how long after its time a member is over.
local function last(bound, key, prefix, width, lasts)
    local to = BEHIND
    if 0 < bound then to = pack('>I' .. width, max(min(bound, $INSTANT_MAX_MS) - lasts, 0) + 1) end
    local member = call('ZREVRANGEBYLEX', key, '(' .. prefix .. to, '[' .. prefix, 'LIMIT', 0, 1)[1]
    return member and unp('>I' .. width, member, #prefix + 1) + lasts or 0
end
local function memories()
    local bound, most = unp('>I7I7', rest)
    if limit == 0 or now < bound then return {''} end
    local names, from = next_queues(sub(rest, 15))
    most = max(most, last(bound, $WINDOWS, '', 6, 0))
    for _, name in ipairs(names) do
        local q = number_of(name)
        if q then most = max(most, last(bound, $REMEMBERED_BY_END, q, 6, $ID_MEMORY), last(bound, $GROUPS_BY_PLACE, q .. 'g', 7, 0)) end
    end
    if from ~= '' then return {leave('m', pack('>I7I7', bound, most) .. from)} end
    if most == 0 then leave('c', '') else leave('m', pack('>I7I7', most, 0)) end
    return {''}
end
return phase == 'm' and memories() or records()
