-- enqueue: inserts jobs in order. Each job sees the effects of the ones before it (S2, S3, S4).
-- KEYS: common, then the notification keys of the queues.
-- ARGV: now, instance8, number, kind of call, epoch, number of queues, script; per queue: name, version of the settings
--   that the caller knows (0: none), settings for a new queue; then the ids of the jobs, their specs, their rests.
--   Kind of call: o ordinary, with all its jobs that go here; t the same, but two of its ids are the same; b its jobs
--     break a limit; h only jobs that are here already; p with some of its jobs that go here, perhaps: others may follow;
--     f the same, but only if jobs of the same concurrency key or group are here; c only check whether it would be
--     refused.
--   Script: '' or three bytes: the number of this script among those of the call (from 0), how many there are, whether
--     the call was accepted (1: nothing is refused).
--   Spec, which jobs often share: queue2 flags1 level1; kind of time (a at, i in) ms7; kind of expiry (a, i, or n for
--     none) ms7; conflict (k keep, p replace, s reschedule) version4 (0: any) skip3.
--   Rest: what follows the times in a record; the payload comes after `skip` bytes.
-- Answers: per job a tag with its fields:
--   I run_at6: inserted, by this call or by the one that it repeats
--   R id run_at6: the holder was replaced
--   S id run_at6: the holder was rescheduled
--   D id state1 version4 cancel1 and its kind as a chunk: a duplicate
--   X id: a job of another queue has the id
--   F: the queue is full
--   kinds h, f and p only: A: it is not here; L: it is not here, but jobs of its key or group are; M: it was not put
--     here, and may be elsewhere in a later epoch
-- Answers before any write:
--   {'stale', number of a queue, its settings or ''} if the caller knows other settings
--   {'refused'} for a call that breaks a limit and is no repetition
--   {'ok'} for a call that is only checked
--   {'moved', epoch} if jobs of a later epoch may be elsewhere
--   {'expired', number of a job, expires_at, run_at} for a job that expires before it is due. This is decided by the
--     time of the call's first script: nothing is refused of a call that is partly done, here or elsewhere.
-- Cost: O(n log N).
local instance, number, epoch, nq = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[6])
local is_look, follows = ARGV[4] == 'h', ARGV[4] == 'f'
-- A repetition may have fewer or other jobs for this shard, so it is noted what each of them did.
local by_job = is_look or follows or ARGV[4] == 'p'
local SEVERAL, ONE_OF, OTHER = 32768, 16384, 8192 -- above all positions in a call
local part, parts, accepted = 0, 1, 0
if ARGV[7] ~= '' then part, parts, accepted = byte(ARGV[7], 1, 3) end
local key = instance .. (by_job and 'f' or 'e')
local ids_at = 8 + 3 * nq
local n = (#ARGV - ids_at + 1) / 3
local specs_at, rests_at = ids_at + n, ids_at + 2 * n
-- How many records are read at once, if there are any. Each can have a mebibyte.
local CHUNK = 64

-- Returns the answer for a job that exists already. If its kind is known, its record is not read, because it may be
-- large.
local function existing(id, kind)
    local rec = not kind and call('HGET', $RECORDS, id)
    if not kind and not rec then return 'D' .. id .. pack('>BI4BB', 255, 0, 0, 0) end
    kind = kind or rules().kind_of(rec)
    local job, row = {state = $WAITING}, call('HGET', $RUNS, id)
    -- Reads as much as can be read. A row that something else overwrote must not stop a call after its first write.
    pcall(rules().history, job, call('HGET', $HISTORIES, id))
    local is_asked = row and byte(row, 18) or 0
    return 'D' .. id .. pack('>BI4BB', row and $RUNNING or job.state, job.version, is_asked % 2, #kind) .. kind
end
-- Returns the number of the queue of a record's job.
local function queue_of(rec) return sub(rec, 3, 5) end
-- Returns the position of the unique key in a rest; false if there is none.
local function key_at(flags)
    return flags % 32 >= 16 and 1 + (flags % 8 >= 4 and 4 or 0) + (flags % 16 >= 8 and 2 or 0)
end
-- Returns the position of a concurrency key in a rest.
local function lock_at(flags)
    return 1 + (flags % 8 >= 4 and 4 or 0) + (flags % 16 >= 8 and 2 or 0) + (flags % 32 >= 16 and 23 or 0)
end
-- Returns the position of a group's digest in a rest.
local function gid_at(flags) return lock_at(flags) + (flags % 64 >= 32 and 20 or 0) end

local last = last_call(key, number)
local is_over = last and number <= unp('>I8', last)
-- If the last call is this one, its row says which of its scripts ran. It also says which jobs of this script were not
-- inserted: there was no room, or, with OTHER added to the position, the id or the key was known. For a call of one script,
-- the row is the list of these positions. For several, the number of scripts comes first, and the number of each script
-- comes before its positions.
local so_far, full, other = '', {}, {}
local is_last = is_over and number == unp('>I8', last)
if is_last and not by_job then
    so_far = sub(last, 15)
    local of, had, was_run = 0, 1, part == 0
    for at = 1, #so_far, 2 do
        local place = unp('>I2', so_far, at)
        if SEVERAL <= place then
            had, was_run = place - SEVERAL, false
        elseif ONE_OF <= place then
            of = place - ONE_OF
            was_run = was_run or of == part
        elseif of == part and OTHER <= place then
            other[place - OTHER] = true
        elseif of == part then
            full[place] = true
        end
    end
    -- This script still has to run if it has not, and if the call had that many scripts.
    is_over = was_run or had <= part
end
if is_over and ARGV[4] == 'c' then return {'ok'} end
-- What the jobs of the same call did here, by id: the job was inserted (I), it met the holder of its key (C), there was no
-- room for it (F). Of two jobs with one id, the later note counts.
local trail, noted = '', {}
if by_job and is_last then
    trail, is_over = sub(last, 15), false
    for at = 1, #trail, 17 do noted[sub(trail, at + 1, at + 16)] = sub(trail, at, at) end
end
-- Returns the answer for a job that this call inserted here before: the same as then, as long as it has a record. Of two jobs with
-- one id, only the first was inserted: nil for the others.
local told_again = {}
local function inserted_before(i)
    local id, rec = ARGV[ids_at + i - 1], call('HGET', $RECORDS, ARGV[ids_at + i - 1])
    if told_again[id] then return end
    told_again[id] = true
    if not rec or #rec < 14 then return existing(id) end
    local _, _, _, kind, ms = unp('>I2BBc1I7', ARGV[specs_at + i - 1])
    local created = unp('>I6', rec, 9)
    return 'I' .. pack('>I6', max(kind == 'a' and ms or min(created + ms, $INSTANT_MAX_MS), created))
end
-- Returns the answer for a job of this call that was put here before, or whose key was held.
local function existing_or_holder(i)
    local id, spec = ARGV[ids_at + i - 1], ARGV[specs_at + i - 1]
    local rec = call('HGET', $RECORDS, id)
    if rec then
        local name = ARGV[5 + 3 * unp('>I2', spec)]
        return queue_of(rec) == number_of(name) and existing(id, rules().kind_of(rec)) or 'X' .. id
    end
    local at = key_at(byte(spec, 3))
    local digest = at and unp('>c16', ARGV[rests_at + i - 1], at)
    return existing(digest and rules().holder(digest) or id)
end
if is_over and not is_look then
    -- A repetition (S3) writes nothing.
    local answers = {}
    for i = 1, n do
        answers[i] = full[i] and 'F' or is_last and not other[i] and inserted_before(i) or existing_or_holder(i)
    end
    return {concat(answers)}
end

if ARGV[4] == 'b' then return {'refused'} end
if epoch < shard.epoch then
    if trail == '' then return {'moved', shard.epoch} end
    local answers = {}
    for i = 1, n do
        local was = noted[ARGV[ids_at + i - 1]]
        answers[i] = not was and 'M' or was == 'F' and was or was == 'I' and inserted_before(i)
            or existing_or_holder(i)
    end
    return {concat(answers)}
end
local named = {}
for i = 1, nq do
    local at = 5 + 3 * i
    local name, version = ARGV[at], tonumber(ARGV[at + 1])
    local q = number_of(name)
    named[i] = {name = name, row = ARGV[at + 2], q = q, added = 0}
    if q then
        if queue(q).version ~= version then return {'stale', i, rules().settings_of(q)} end
    elseif version ~= 0 then
        return {'stale', i, ''}
    end
end

-- The plan of each spec.
local plans = {}
for i = 1, n do
    local spec = ARGV[specs_at + i - 1]
    if not plans[spec] then
        local of, flags, level, kind, ms, expiry, expires, conflict, wanted, skip = unp('>I2BBc1I7c1I7c1I4I3', spec)
        local run_at = max(kind == 'a' and ms or min(now + ms, $INSTANT_MAX_MS), now)
        expires = expiry ~= 'n' and (expiry == 'a' and expires or min(now + expires, $INSTANT_MAX_MS))
        if expires and expires <= run_at and accepted == 0 and so_far == '' and trail == '' and not is_over then
            return {'expired', i, string.format('%.0f', expires), string.format('%.0f', run_at)}
        end
        plans[spec] = {
            of = named[of], flags = flags, level = level, run_at = run_at, expires = expires, wanted = wanted, skip = skip,
            -- An older call than the last one changes nothing.
            conflict = is_over and 'k' or conflict,
            key_at = key_at(flags), gid_at = 64 <= flags and gid_at(flags), inserted = 'I' .. pack('>I6', run_at),
            lock_at = 32 <= flags and flags < 64 and lock_at(flags),
        }
    end
end
if ARGV[4] == 'c' then return {'ok'} end
-- Returns the flags and the times of a record.
local function flags_and_times(plan, created)
    local flags, times = plan.flags, pack('>I6', created)
    if plan.run_at ~= created then flags, times = flags + 1, times .. pack('>I6', plan.run_at) end
    if plan.expires then flags, times = flags + 2, times .. pack('>I6', plan.expires) end
    return flags, times
end

-- The kinds of the jobs that are here already, and their queues, by id.
local known, known_in = {}, {}
for at = ids_at, specs_at - 1, CHUNK do
    for i, rec in ipairs(call('HMGET', $RECORDS, unpack(ARGV, at, min(at + CHUNK, specs_at) - 1))) do
        if rec then
            local id = ARGV[at + i - 1]
            known[id], known_in[id] = rules().kind_of(rec), queue_of(rec)
        end
    end
end

-- Nothing is refused from here on. New jobs are written in one command per place, at the end or before a job that has
-- to see them.
local records, payloads, members, beside, fresh, expiries, fresh_keys = {}, {}, {}, {}, 0, {}, {}
local function flush()
    if 0 < fresh then
        -- Of a call that a crash of the server cuts off, a payload without a record is no harm.
        if 0 < #payloads then
            if shard.format < $FORMAT then put_shard() end
            call('HSET', $PAYLOADS, unpack(payloads))
        end
        call('HSET', $RECORDS, unpack(records))
        call('ZADD', $TIMELINE, unpack(members))
        if 0 < #beside then call('ZADD', $GROUPS_BY_PLACE, unpack(beside)) end
        if 0 < #expiries then call('ZADD', $EXPIRIES, unpack(expiries)) end
    end
    records, payloads, members, beside, fresh, expiries, fresh_keys = {}, {}, {}, {}, 0, {}, {}
end
-- Returns whether jobs of the same group, or else of the same concurrency key, are here.
local lives = {}
local function lives_here(plan, q, rest)
    local at = plan.gid_at or plan.lock_at
    if not q or not at then return false end
    local of = q .. sub(rest, at, at + 15)
    if lives[of] == nil then lives[of] = rules().first_live(q, sub(of, 4), plan.gid_at and sub(of, 4)) ~= nil end
    return lives[of]
end

-- Handles a new job whose key another job holds.
local function meet(id, new, rest)
    flush()
    local job = rules().load(id)
    if not job or job.state ~= $WAITING or new.conflict == 'k' or new.conflict == 'p' and new.wanted ~= 0
        and new.wanted ~= job.version then
        return existing(id, job and rules().kind_of(job.rec))
    end
    rules().leave_waiting(job)
    job.version = job.version + 1
    local tag = 'S'
    if new.conflict == 's' then
        job.moved, job.run_at = true, new.run_at
    else
        -- Options and payload are new. The key, its window, and the scope of the key stay.
        tag = 'R'
        local key_from = new.key_at
        local asked_at = gid_at(new.flags) + (new.gid_at and 16 or 0)
        local within_at = rules().behind_chunk(rest, asked_at)
        local kept_at = rules().behind_chunk(job.rec, job.asked_at)
        local before = sub(rest, 1, key_from - 1) .. job.digest .. pack('>I7', job.window)
            .. (job.key and job.key .. pack('>I4', job.most) or '') .. (job.gid or '') .. sub(rest, asked_at, within_at - 1)
            .. sub(job.rec, kept_at, job.payload_at - 1)
        local changed = {
            flags = new.flags % 32 + (job.key and 32 or 0) + (job.gid and 64 or 0),
            run_at = new.run_at, expires = new.expires,
        }
        local flags, times = flags_and_times(changed, job.created)
        local level = new.level % 16 + 16 * job.scope
        local rec, apart = rules().record_of(flags, level, job.q, times, before, sub(rest, new.skip + 1))
        rules().put_record(job, rec, apart)
        if known[id] then known[id] = rules().kind_of(rec) end
        pending().tally(job.q, 'b', #rest - new.skip - job.bytes)
        job.moved, job.unexpiring, job.expires = nil, nil, nil
        rules().head(job, rec)
    end
    rules().put_history(job)
    rules().put_waiting(job)
    pending().notify(job.q, job.run_at)
    return tag .. id .. pack('>I6', job.run_at)
end

-- Returns whether a capped queue has room for a job (S17). Its live jobs are counted once, then updated.
local function has_room(of, q, bytes)
    local limits = rules().limits_of(q)
    if not of.live then
        local from, to = '[' .. q, '(' .. q .. '\255'
        of.live = limits.max_jobs and call('ZLEXCOUNT', $TIMELINE, from, to) + call('ZLEXCOUNT', $LEASES, from, to) or 0
        of.bytes = rules().counter(q .. 'b')
    end
    local changed = shard.tallies[q .. 'b'] or 0
    return not (limits.max_jobs and limits.max_jobs <= of.live)
        and not (limits.max_bytes and limits.max_bytes < of.bytes + of.added + changed + bytes)
end

local answers, put_here, others = {}, {}, {}
full = {}
local has_twins = ARGV[4] == 't' or by_job
for i = 1, n do
    local id, spec, rest = ARGV[ids_at + i - 1], ARGV[specs_at + i - 1], ARGV[rests_at + i - 1]
    local plan = plans[spec]
    local of, bytes, answer, digest = plan.of, #rest - plan.skip, nil, nil
    local q = of.q
    if noted[id] == 'F' then
        answer = 'F'
    elseif noted[id] == 'I' then
        flush()
        answer = inserted_before(i) or existing_or_holder(i)
    elseif known[id] then
        flush()
        -- The id of another queue's job stands for that job, not for this one.
        answer = known[id] and known_in[id] ~= q and 'X' .. id or existing(id, known[id])
    elseif noted[id] == 'C' then
        flush()
        answer = existing_or_holder(i)
    else
        if q and math.floor(byte(id, 7) / 16) == $DERIVED then
            local ended = call('HGET', $REMEMBERED, q .. id)
            if ended and now < unp('>I6', ended) + $ID_MEMORY then answer = existing(id) end
        end
        if not answer and plan.key_at then
            digest = unp('>c16', rest, plan.key_at)
            if fresh_keys[digest] then flush() end
            local by = rules().meet_key(digest)
            if by then
                -- A queue that is or was pinned gives a job another id here. It does not meet itself.
                local is_itself = sub(by, 1, 8) == sub(id, 1, 8) and sub(by, 11) == sub(id, 11)
                answer = is_itself and existing(by) or meet(by, plan, rest)
                if by_job and (not is_look or sub(answer, 1, 1) ~= 'D') then put_here[#put_here + 1] = 'C' .. id end
            end
        end
        if not answer and (is_look or follows) then
            local is_here = lives_here(plan, q, rest)
            if is_look or not is_here then answer = is_here and 'L' or 'A' end
        end
        if not answer and q and queue(q).flags % (2 * $CAPPED) >= $CAPPED and not has_room(of, q, bytes) then
            answer = 'F'
            full[#full + 1] = by_job and 'F' .. id or pack('>I2', i)
        end
    end
    if not answer then
        if not q then
            q = rules().new_queue(of.name, of.row)
            of.q = q
        elseif queue(q).due == $AT_REST then
            rules().wake(q, of.name)
        end
        if not plan.front then
            local flags, times = flags_and_times(plan, now)
            plan.front = pack('>BB', flags, plan.level) .. q .. pack('>I3', 8 + #times + plan.skip) .. times
            plan.member = q .. pack('>BI6', plan.level % 16, plan.run_at)
        end
        local rec = nil
        if bytes <= $WITHIN_RECORD_MAX then
            rec = plan.front .. rest
        else
            local flags, times = flags_and_times(plan, now)
            local apart
            rec, apart = rules().record_of(flags, plan.level, q, times, sub(rest, 1, plan.skip), sub(rest, plan.skip + 1))
            payloads[#payloads + 1], payloads[#payloads + 2] = id, apart
        end
        records[fresh + 1], records[fresh + 2] = id, rec
        local member = plan.member
        if plan.gid_at then
            local gid = sub(rest, plan.gid_at, plan.gid_at + 15)
            member = q .. char($GROUPED) .. gid .. sub(member, 4)
            beside[#beside + 1], beside[#beside + 2] = '0', rules().timed(q, plan.run_at, id)
            rules().touch_group(q, gid)
        elseif plan.lock_at then
            beside[#beside + 1], beside[#beside + 2] = '0', q .. 'k' .. sub(rest, plan.lock_at, plan.lock_at + 15) .. id
        end
        members[fresh + 1], members[fresh + 2] = '0', member .. id .. '\0'
        fresh = fresh + 2
        if plan.expires then
            expiries[#expiries + 1], expiries[#expiries + 2] = '0', q .. pack('>I6', plan.expires) .. id
            pending().hint(q, plan.expires)
        end
        if has_twins then known[id], known_in[id] = rules().kind_of(rec), q end
        if digest then
            local _, window = unp('>c16I7', rest, plan.key_at)
            rules().put_key({digest = digest, id = id, scope = math.floor(plan.level / 16), created = now, window = window})
            fresh_keys[digest] = true
        end
        if by_job then put_here[#put_here + 1] = 'I' .. id end
        of.added, of.live = of.added + bytes, of.live and of.live + 1
        if not of.earliest or plan.run_at < of.earliest then of.earliest = plan.run_at end
        answer = plan.inserted
    elseif not by_job and answer ~= 'F' then
        others[#others + 1] = pack('>I2', OTHER + i)
    end
    answers[i] = answer
end
flush()
if by_job then
    if 0 < #put_here then
        -- The search in misplaced.lua may have passed this position, so it starts again.
        if follows then call('HDEL', $STATE, 'search') end
        put_call(key, last, number, trail .. concat(full) .. concat(put_here))
    end
elseif #full < n then
    if 1 < parts then
        if so_far == '' then so_far = pack('>I2', SEVERAL + parts) end
        so_far = so_far .. pack('>I2', ONE_OF + part)
    end
    put_call(key, last, number, so_far .. concat(full) .. concat(others))
end
for i = 1, nq do
    local of = named[i]
    local q, due = of.q, of.earliest
    if q then
        shard.notifications[q] = KEYS[$NOTIFICATIONS + i - 1]
        if 0 < of.added then add(q .. 'b', of.added) end
        -- Waiting processes know the first due job. Only an earlier one needs a notification.
        if due and due <= now and now < queue(q).spare then
            call('ZADD', shard.notifications[q], 'LT', 0, 'r')
        elseif due and (due <= now or due <= first_due(walk_of(q))) then
            pending().notify(q, due)
        end
    end
end
put()
return {concat(answers)}
