-- audit: one slice of a consistency check: some `limit` entries of one key, or a mebibyte of what they hold.
-- KEYS: common, d, f.
-- ARGV: now, which key, where to go on or '', limit, 1 to repair, the settings of a queue whose own can not be read, without a name; those of the queue `found`.
-- Answers: where to go on or ''; how many entries were checked; notifications left to the caller; the ids of the
--   checked records in a row; then per finding: id or '', name of the queue as a chunk or '', what, detail, 1 if it was
--   repaired.
-- Repairs: A queue gets its name, number and settings back as far as they can be found. A member with a score of its own gets that of
--   the others: before the first page of a key, up to `limit` on each side. A record in no place becomes dead, reason `orphan`; in the queue `found`, if it says none. In two places,
--   running wins over waiting, and waiting over ended. An entry without a record is dropped. An entry that another one needs is added.
--   Records are never deleted.
-- Counters are checked only if all that they count is read in one step: for queues with at most `limit` jobs, and a
-- mebibyte of records and histories of waiting jobs.
-- Cost: O(limit log N).
drains()
local DOCS, DOCS_BY_KEY = KEYS[$NOTIFICATIONS], KEYS[$NOTIFICATIONS + 1]
local SCAN, STRAYS = $READ_AT_ONCE, 'found'
local what, from, limit, repair = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local answer, ids = {'', 0, '', ''}, {}
local queues_seen = {}
local function is_queue(q)
    if queues_seen[q] == nil then queues_seen[q] = call('HEXISTS', $SETTINGS, q) == 1 end
    return queues_seen[q]
end
local function found(id, q, kind, detail, is_left)
    local n = #answer
    local name = q and is_queue(q) and rules().name_of(q) or ''
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = id, name, kind, detail
    answer[n + 5] = repair and not is_left and 1 or 0
end
local function stands(key, member) return call('ZSCORE', key, member) end
local function exists(id) return call('HEXISTS', $RECORDS, id) == 1 end
-- The lengths of the members and rows of a key. Entries of another length were not written by a script.
local LENGTHS = {t = 27, o = 25, l = 25, e = 30, u = 22, v = 22, m = 6, k = 25, g = 35, h = 27, y = 26}
local function is_whole(it, drop, key, entry)
    local length, mark = LENGTHS[what], what == 't' and byte(it, 4)
    if mark == $GROUPED then length = 44 end
    if mark == $BLOCKED then length = #it == 64 and 64 or 48 end
    if what == 'h' and sub(it, 4, 4) == 'k' then length = 36 end
    -- A window has its length, unless an older version made it.
    if what == 'u' and #it == 35 then length = 35 end
    if not length or #it == length then return true end
    found('', nil, 'corrupt', 'an entry of another length')
    if repair then call(drop, key, entry) end
end
-- Returns whether a job holds its unique key in its present state. A window counts as over here: the clock may have
-- gone back since it ended.
local function holds_key(job)
    if not job.digest or job.scope == $WINDOW or job.ended and not job.run then return false end
    return job.scope ~= $UNTIL_START or job.state == $WAITING and not job.started
end

-- ── records ──

-- Returns a job with its place, or nil; also nil if its queue does not exist, or if its payload is stored apart and is gone.
local function load(id)
    local job = rules().load(id)
    return job and is_queue(job.q) and (not job.apart or call('HEXISTS', $PAYLOADS, id) == 1) and job or nil
end
-- Returns the state and time at which a partially written record ended, as its history says: state1 ended6; or nil.
local function end_of(id)
    local job = {id = id}
    if pcall(rules().history, job, call('HGET', $HISTORIES, id)) and job.ended then return pack('>BI6', job.state, job.ended) end
end
-- Makes a partially written record dead. It has left its place in a queue.
local function mend(id, q)
    local rec = call('HGET', $RECORDS, id)
    -- Its head may be valid except for its queue.
    if pcall(rules().head, {}, rec) and not is_queue(sub(rec, 3, 5)) then
        call('HSET', $RECORDS, id, sub(rec, 1, 2) .. q .. sub(rec, 6))
    end
    rules().end_lost(q, id)
    call('HDEL', $RUNS, id)
    local job = rules().load(id)
    -- The record itself may be valid, and only its queue, its run or its payload was not.
    if job and job.q == q and not job.ended then
        if what == 't' then rules().unwait(job) end
        rules().finish(job, $DEAD, 'corrupt')
    else
        rules().bury(q, id, what == 'e')
    end
end
-- Returns the queue for jobs that say none.
local function queue_of_strays()
    local q = number_of(STRAYS)
    if q and is_queue(q) then return q end
    q = rules().new_queue(STRAYS, ARGV[7])
    queues_seen[q] = true
    return q
end
local function unsound(id)
    if end_of(id) then return end
    local rec = call('HGET', $RECORDS, id)
    local q = #rec >= 5 and sub(rec, 3, 5)
    if q and is_queue(q) then
        found(id, q, 'corrupt', 'can not be read')
    else
        found(id, nil, 'corrupt', 'can not be read, stands nowhere and names no queue; after a repair it is dead, in the queue found')
        q = repair and queue_of_strays()
    end
    if repair then mend(id, q) end
end
local function is_held(job) return job.key and stands($TIMELINE, rules().blocked_member(job)) end
-- Returns whether its group knows a waiting job that is not blocked: the job is among the jobs of all groups by time,
-- and its group is in some place. A group that has used no limiter does not wait for a later job.
local function is_known_to_group(job)
    local row = call('HGET', $GROUPS, job.q .. job.gid)
    local place, at = '', 0
    if row and #row == 26 then place, at = unp('>c1I7', row) end
    local is_late = place == 'w' and job.run_at < at and sub(row, 9) == string.rep('\0', 18)
    return stands($GROUPS_BY_PLACE, rules().timed(job.q, job.run_at, job.id)) and (place == 'r' or place == 'w' and not is_late or place == 'b')
end
-- Checks that a record is in some place, and has the entries that belong to it.
local function record(id)
    if #id == 16 then ids[#ids + 1] = id end
    local job = load(id)
    if not job then return unsound(id) end
    if job.run then
        if not stands($LEASES, rules().lease_member(job)) then
            found(id, job.q, 'orphan', 'running, but its lease has no time')
            if repair then call('ZADD', $LEASES, 0, rules().lease_member(job)) end
        end
        if job.run.key and not stands($RUNNING_KEYS, job.q .. job.run.key .. id) then
            found(id, job.q, 'stale_key', 'runs without a place among those of its concurrency key')
            if repair then call('ZADD', $RUNNING_KEYS, '0', job.q .. job.run.key .. id) end
        end
        if job.run.gid and not stands($RUNNING_KEYS, job.q .. job.run.gid .. id) then
            found(id, job.q, 'stale_key', 'runs without a place among those of its group')
            if repair then call('ZADD', $RUNNING_KEYS, '0', job.q .. job.run.gid .. id) end
        end
    elseif not stands(job.ended and $ENDED_JOBS or $TIMELINE, job.ended and rules().ended_member(job) or rules().waiting_member(job))
        and (job.ended or not is_held(job)) then
        found(id, job.q, 'orphan', 'stands nowhere')
        if repair then
            if job.ended then
                pending().tally(job.q, 'b', job.bytes)
                pending().tally(job.q, char(job.state), -rules().kept_bytes(job))
            elseif 1 < job.attempt then
                pending().tally(job.q, 'r', -1)
            end
            rules().finish(job, $DEAD, 'orphan')
        end
        return
    elseif job.state == $WAITING and job.expires and not stands($EXPIRIES, job.q .. pack('>I6', job.expires) .. id) then
        found(id, job.q, 'orphan', 'would never expire')
        if repair then
            call('ZADD', $EXPIRIES, '0', job.q .. pack('>I6', job.expires) .. id)
            pending().hint(job.q, job.expires)
        end
    end
    if not job.run and not job.ended and job.gid and not is_held(job) and not is_known_to_group(job) then
        found(id, job.q, 'orphan', 'its group does not know of it')
        if repair then
            call('ZADD', $GROUPS_BY_PLACE, '0', rules().timed(job.q, job.run_at, id))
            rules().touch_group(job.q, job.gid)
        end
    end
    if not job.ended and job.key and not job.gid and not stands($GROUPS_BY_PLACE, rules().live_member(job.q, job.key, id)) then
        found(id, job.q, 'stale_key', 'its concurrency key does not know of it')
        if repair then rules().put_live(job) end
    end
    if holds_key(job) and call('HEXISTS', $UNIQUE_KEYS, job.digest) == 0 then
        found(id, job.q, 'stale_key', 'its unique key is free')
        if repair then rules().put_key(job) end
    end
end
local function history(id)
    if exists(id) then return end
    found(id, nil, 'no_record', 'a history of no record')
    if repair then call('HDEL', $HISTORIES, id) end
end
local function run(id, row)
    if exists(id) then return end
    found(id, sub(row, 9, 11), 'no_record', 'a run of no record')
    if repair then call('HDEL', $RUNS, id) end
end

-- ── places ──

-- Checks that an entry of a place belongs there.
local function place(key, member)
    local q, id = sub(member, 1, 3), what == 'l' and sub(member, 10) or what == 't' and rules().id_in(member) or sub(member, 11, 26)
    local job, belongs = load(id), nil
    local blocked = what == 't' and byte(member, 4) == $BLOCKED
    -- A repair may change which job of the key is next.
    if blocked and repair and is_queue(q) then rules().touch(q, sub(member, 5, 20)) end
    if blocked and job then
        belongs = job.state == $WAITING and job.key and rules().blocked_member(job) == member and not stands($TIMELINE, rules().waiting_member(job))
    elseif what == 't' and job then
        belongs = job.state == $WAITING and rules().waiting_member(job) == member
    elseif what == 'l' and job then
        belongs = job.run and rules().lease_member(job) == member
    elseif job then
        belongs = job.ended and not job.run and rules().ended_member(job) == member
    end
    if belongs then return end
    local is_torn = not job and exists(id)
    local ended = is_torn and end_of(id)
    if ended and what == 'e' and sub(member, 4, 10) == ended then return end
    -- Its place says which queue it is of.
    local to_mend = is_torn and not ended and is_queue(q)
    if to_mend then
        found(id, q, 'corrupt', 'can not be read')
    elseif job or is_torn then
        found(id, q, 'two_places', 'stands in a second place')
    else
        found(id, q, 'no_record', 'stands somewhere, without a record')
    end
    if not repair then return end
    call('ZREM', key, member)
    if what == 'e' then pending().tally(q, sub(member, 4, 4), -unp('>I4', member, 27)) end
    if to_mend then mend(id, q) end
end
-- Checks an entry among the runs of a concurrency key or a group.
local function place_of(key, member)
    local q, of, id = sub(member, 1, 3), sub(member, 4, 19), sub(member, 20)
    local job = load(id)
    if job and job.run and job.q == q and (job.run.key == of or job.run.gid == of) then return end
    found(id, q, 'stale_key', 'a place among the runs of a concurrency key or a group whose job does not run')
    if repair and is_queue(q) then
        -- Nothing says which of the two it is. An event for the wrong one does no harm.
        rules().touch(q, of)
        if call('HEXISTS', $GROUPS, q .. of) == 1 then rules().touch_group(q, of) end
    end
    if repair then call('ZREM', key, member) end
end
-- Checks the place of a group, the time of a job of a group, or an entry of a job with a concurrency key.
local function group_place(key, member)
    if sub(member, 4, 4) == 'k' then
        local q, id = sub(member, 1, 3), sub(member, 21)
        local job = load(id)
        if job and (job.run or not job.ended) and job.key and not job.gid
            and rules().live_member(job.q, job.key, id) == member then return end
        -- Nothing is known of a record that cannot be read.
        if not job and exists(id) then return end
        found(id, q, 'stale_key', 'a concurrency key knows of a job that does not wait or run')
        if repair then call('ZREM', key, member) end
        return
    end
    local q, place, at, of = unp('>c3c1I7c16', member)
    if place == 'd' then
        local job = load(of)
        if job and job.state == $WAITING and job.q == q and job.gid and job.run_at == at and not is_held(job) then return end
        found(of, q, 'no_record', 'the time of a job that does not wait in a group then')
    else
        local row = call('HGET', $GROUPS, q .. of)
        if row and sub(row, 1, 8) == sub(member, 4, 11) then return end
        found('', q, 'two_places', 'a place of a group that stands elsewhere, or is not known')
    end
    if repair then call('ZREM', key, member) end
end
local function group(field, row)
    local q = sub(field, 1, 3)
    if stands($GROUPS_BY_PLACE, q .. sub(row, 1, 8) .. sub(field, 4)) then return end
    found('', q, 'orphan', 'a group that stands nowhere')
    if not repair then return end
    -- The state of its limiter stays.
    call('HSET', $GROUPS, field, 'n' .. sub(row, 2))
    if is_queue(q) then rules().touch_group(q, sub(field, 4)) else call('HDEL', $GROUPS, field) end
end
-- Checks that a payload belongs to a record. That of a record that cannot be read is left to people, and one of another length to
-- a worker, which makes its job dead.
local function payload(id, row)
    local rec, job = call('HGET', $RECORDS, id), {}
    if rec and not pcall(rules().head, job, rec) then return end
    if job.apart and job.apart ~= #row and not end_of(id) then found(id, job.q, 'corrupt', 'a part of its payload is missing; it becomes dead when a worker reserves it', true) end
    if job.apart then return end
    found('', nil, 'no_record', 'a payload without a job')
    if repair then call('HDEL', $PAYLOADS, id) end
end
local function expiry(key, member)
    local q, till, id = unp('>c3I6c16', member)
    local job = load(id)
    if job and job.state == $WAITING and job.q == q and job.expires == till then return end
    found(id, q, 'no_record', 'an expiry of no waiting job')
    if repair then call('ZREM', key, member) end
end

-- ── unique keys and what is remembered ──

local function unique_key(digest, row)
    local id, till = unp('>c16I6', row)
    if 0 < till then
        if stands($WINDOWS, sub(row, 17, 22) .. digest) then return end
        found(id, nil, 'stale_key', 'a window that would never end')
        if repair then
            call('ZADD', $WINDOWS, 0, sub(row, 17, 22) .. digest)
            rules().hint_wide(till)
        end
        return
    end
    local job = load(id)
    if job and holds_key(job) and job.digest == digest or not job and exists(id) then return end
    found(id, job and job.q, 'stale_key', 'a unique key whose job is gone or does not hold it')
    if repair then call('HDEL', $UNIQUE_KEYS, digest) end
end
local function window(key, member)
    local row = call('HGET', $UNIQUE_KEYS, sub(member, 7))
    if row and sub(row, 17, 22) == sub(member, 1, 6) then return end
    found('', nil, 'stale_key', 'the end of a window that is gone')
    if repair then call('ZREM', key, member) end
end
local function remembered(field, ended)
    local q, id = sub(field, 1, 3), sub(field, 4)
    if stands($REMEMBERED_BY_END, q .. ended .. id) then return end
    found(id, q, 'no_record', 'would be remembered for ever')
    if repair and is_queue(q) then
        call('ZADD', $REMEMBERED_BY_END, 0, q .. ended .. id)
        pending().hint(q, 0)
    elseif repair then
        call('HDEL', $REMEMBERED, field)
    end
end
local function memory(key, member)
    local q, ended, id = sub(member, 1, 3), sub(member, 4, 9), sub(member, 10)
    if call('HGET', $REMEMBERED, q .. id) == ended then return end
    found(id, q, 'no_record', 'the end of a memory that is gone')
    if repair then call('ZREM', key, member) end
end
local function last_call(key, row)
    if stands($CALLS_BY_TIME, key) then return end
    found('', nil, 'no_record', 'a last call that would be remembered for ever')
    if repair and #row < 14 then
        call('HDEL', $CALLS, key)
    elseif repair then
        call('ZADD', $CALLS_BY_TIME, string.format('%.0f', unp('>I6', row, 9)), key)
        rules().hint_wide(now)
    end
end

-- ── counters ──

-- Counts what a queue has. Returns how many entries that are, or nil if they are too many for one step.
local function count(q, counts)
    local first, last = rules().within(q)
    local n, begin = 0, shard.bytes
    for _, key in ipairs({$TIMELINE, $LEASES, $ENDED_JOBS}) do n = n + call('ZLEXCOUNT', key, first, last) end
    if limit < n then return nil end
    local function add(counter, by) counts[counter] = (counts[counter] or 0) + by end
    for _, member in ipairs(call('ZRANGEBYLEX', $TIMELINE, first, last)) do
        local job = load(rules().id_in(member))
        if not job or $BATCH_BYTES_MAX < shard.bytes - begin then return nil end
        add('b', job.bytes)
        if 1 < job.attempt then add('r', 1) end
    end
    for _, member in ipairs(call('ZRANGEBYLEX', $LEASES, first, last)) do
        local job = load(sub(member, 10))
        if not job or not job.run then return nil end
        add('b', job.run.bytes)
    end
    for _, member in ipairs(call('ZRANGEBYLEX', $ENDED_JOBS, first, last)) do
        if #member ~= LENGTHS.e then return nil end
        add(sub(member, 4, 4), unp('>I4', member, 27))
    end
    return n
end
-- Lets the next ack look at the bounds of what is kept: a wrong counter may have hidden that one is passed.
local function mend_ends(q)
    call('HDEL', $COUNTERS, q .. 'e')
    pending().hint(q, 0)
end
local function counters(q)
    local counts = {}
    local n = count(q, counts)
    if not n then return 1 end
    for _, counter in ipairs({'b', 'r', char($DONE), char($CANCELLED), char($DEAD)}) do
        local is, says = counts[counter] or 0, tonumber(call('HGET', $COUNTERS, q .. counter) or 0) or -1
        if is ~= says then
            found('', q, 'counter', string.format('%s: kept %.0f, counted %.0f',
                counter == 'b' and 'bytes of live jobs' or counter == 'r' and 'jobs in a later attempt' or 'bytes of ended jobs',
                says, is))
            if repair then
                call('HSET', $COUNTERS, q .. counter, string.format('%.0f', is))
                mend_ends(q)
            end
        end
    end
    local ends = call('HGET', $COUNTERS, q .. 'e')
    if ends and not string.find(ends, '^-?%d+$') then
        found('', q, 'counter', 'the number of acks that need no sweep is no number')
        if repair then mend_ends(q) end
    end
    return n + 1
end

-- ── walks ──

local function hash(key, check, at_once)
    local bytes, cursor = 0, from == '' and '0' or from
    repeat
        local some = call('HSCAN', key, cursor, 'COUNT', at_once or SCAN)
        cursor = some[1]
        for i = 1, #some[2], 2 do
            local field, row = some[2][i], some[2][i + 1]
            if is_whole(row, 'HDEL', key, field) then check(field, row) end
            bytes, answer[2] = bytes + #row, answer[2] + 1
        end
    until cursor == '0' or limit / 2 <= answer[2] or $BATCH_BYTES_MAX <= bytes + shard.bytes
    if cursor ~= '0' then answer[1] = cursor end
end
local function set(key, check)
    for _ = 1, from == '' and #rules().out_of_order(key, limit, repair) or 0 do
        found('', nil, 'corrupt', 'an entry out of order, which hides others')
    end
    local page = call('ZRANGEBYLEX', key, from == '' and '-' or '(' .. from, '(\255', 'LIMIT', 0, limit)
    for i, member in ipairs(page) do
        if is_whole(member, 'ZREM', key, member) then check(key, member) end
        answer[2] = i
        if $BATCH_BYTES_MAX <= shard.bytes or i == limit then
            answer[1] = member
            break
        end
    end
end
local function doc(key, row)
    if #row < 7 then
        found('', nil, 'corrupt', 'a document without a version')
        if repair then call('HSET', DOCS, key, pack('>I7', next_version(DOCS)) .. row) end
    end
    if stands(DOCS_BY_KEY, key) then return end
    found('', nil, 'no_record', 'a document that no list tells')
    if repair then call('ZADD', DOCS_BY_KEY, '0', key) end
end
local function doc_name(_, key)
    if call('HEXISTS', DOCS, key) == 1 then return end
    found('', nil, 'no_record', 'the name of a document that is not there')
    if repair then call('ZREM', DOCS_BY_KEY, key) end
end
local function queues()
    local q, last = from == '' and 0 or unp('>I3', from), call('HLEN', $QUEUES)
    local aside = from == '' and call('HGET', $STATE, 'aside')
    if aside then
        found('', nil, 'corrupt', aside .. ' entries of another length or place were removed: the jobs that they were of stand nowhere')
        if repair then call('HDEL', $STATE, 'aside') end
    end
    while q < last and answer[2] < limit and shard.bytes < $BATCH_BYTES_MAX do
        q = q + 1
        answer[2] = answer[2] + counters(pack('>I3', q))
    end
    if q < last then answer[1] = pack('>I3', q) end
end

-- ── queues ──

local function found_queue(name, detail)
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = '', rules().as_chunk(name), 'corrupt', detail, repair and 1 or 0
end
-- Returns whether callers can read the settings of a queue.
local function is_readable(q)
    if queue(q).is_torn then return false end
    local is_sound, rest = pcall(function()
        local all, at = rules().settings_of(q), rules().limits_of(q).named_at
        return cjson.decode(sub(all, rules().behind_chunk(all, at)))
    end)
    return is_sound and type(rest) == 'table'
end
-- Checks that a queue has settings, and that sweeps find it. Without settings nothing else of it can be checked.
local function name_of_queue(name, q)
    if #q ~= 3 then
        found_queue(name, 'the number of a queue is damaged')
        -- The next walk finds the number.
        if repair then call('HDEL', $QUEUES, name) end
        return
    end
    -- Sweeps find it only by the score that all have.
    if stands($NAMES, name) ~= '0' and stands($NAMES, '\0' .. name) ~= '0' then
        found_queue(name, 'no sweep finds the queue')
        if repair then call('ZADD', $NAMES, 0, name) end
    end
    local is_gone, row = not is_readable(q), queue(q)
    local function has(places, to) return call('ZRANGEBYLEX', $GROUPS_BY_PLACE, '[' .. q .. places, '(' .. q .. to, 'LIMIT', 0, 1)[1] end
    -- Concurrency keys have entries there, too, between these: 'k'.
    local has_groups = row.let == 0 and (has('b', 'k') or has('l', 'x'))
    if is_gone then
        found_queue(name, 'settings that can not be read, so the queue is paused; a repair pauses it for good, with the defaults otherwise')
    elseif has_groups then
        found_queue(name, 'the queue does not know that it has groups')
    end
    if not repair or not (is_gone or has_groups) then return end
    if is_gone then
        rules().put_settings_as(q, name, ARGV[6])
        queues_seen[q], shard.queues[q] = true, nil
        row = queue(q)
    end
    if row.due == $AT_REST then rules().wake(q, name) end
    row.due, row.hinted = 0, true
    if has_groups then row.let = 1 end
    pending().notify(q, now)
end
-- Checks that the name of a queue leads to its settings.
local function settings(q)
    if #q ~= 3 or not is_readable(q) then return end
    local chunk = rules().name_of(q)
    local name = sub(chunk, #chunk < 256 and 2 or 6)
    local is = call('HGET', $QUEUES, name)
    if is == q then return end
    -- Another queue may have got its name meanwhile.
    local is_taken = is and pcall(rules().name_of, is) and rules().name_of(is) == chunk
    found_queue(name, is_taken and 'a second queue has the name: it gets another one, with a number behind it' or 'the name of a queue leads elsewhere')
    if not repair then return end
    local free, n = name, 1
    while is_taken and call('HEXISTS', $QUEUES, free) == 1 do
        n = n + 1
        free = name .. '.' .. n
    end
    if is_taken then rules().put_settings_as(q, free, rules().settings_of(q)) end
    call('HSET', $QUEUES, free, q)
    call('ZADD', $NAMES, 0, free)
end

local walks = {
    q = function() hash($QUEUES, name_of_queue) end,
    i = function() hash($SETTINGS, settings) end,
    j = function() hash($RECORDS, record) end,
    b = function() hash($PAYLOADS, payload, 1) end,
    x = function() hash($HISTORIES, history) end,
    r = function() hash($RUNS, run) end,
    t = function() set($TIMELINE, place) end,
    o = function() set($EXPIRIES, expiry) end,
    l = function() set($LEASES, place) end,
    e = function() set($ENDED_JOBS, place) end,
    u = function() hash($UNIQUE_KEYS, unique_key) end,
    v = function() set($WINDOWS, window) end,
    m = function() hash($REMEMBERED, remembered) end,
    k = function() set($REMEMBERED_BY_END, memory) end,
    p = function() hash($CALLS, last_call) end,
    g = function() set($RUNNING_KEYS, place_of) end,
    y = function() hash($GROUPS, group) end,
    h = function() set($GROUPS_BY_PLACE, group_place) end,
    d = function() hash(DOCS, doc) end,
    f = function() set(DOCS_BY_KEY, doc_name) end,
    c = queues,
}
walks[what]()
answer[3], answer[4] = put(), table.concat(ids)
return answer
