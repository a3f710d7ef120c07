-- enqueue: hands jobs over, in order, each seeing what the earlier ones did (S2, S3, S4).
-- KEYS: common, then the bells of the queues. ARGV: now, instance8, number, 1 if the jobs break a limit (else 0), number of
-- queues, per queue: name, version of the settings that the caller knows (0: none), settings of a new queue; then per job:
-- id, spec, rest. A spec:
-- queue2 flags1 level1 kind of time (a at, i in) ms7 kind of expiry (a, i, or n for none) ms7 conflict (k keep, p replace,
-- s reschedule) version4 (0: any). The rest of a record follows its times.
-- Answers: per job a tag: I run_at6 | R id run_at6 | S id run_at6 | D id state1 version4 cancel1 | F. Before any write:
-- {'stale', number of a queue, its settings or ''} where the caller knows others, {'refused'} for a
-- call that breaks a limit and is no repetition, {'expired', number of a job, expires_at,
-- run_at} for a job that expires before it is due.
-- Cost: O(n log N).
local instance, number, nq = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local key = instance .. 'e'
local at, named = 6, {}
for i = 1, nq do
    named[i] = {name = ARGV[at], version = tonumber(ARGV[at + 1]), row = ARGV[at + 2]}
    at = at + 3
end
local n = (#ARGV - at + 1) / 3

-- What is told of a job that was met; its record, which may be large, is not read for it.
local function existing(id)
    if call('HEXISTS', J, id) == 0 then return 'D' .. id .. pack('>BI4B', 255, 0, 0) end
    local job, row = {state = WAITING}, call('HGET', R, id)
    past(job, call('HGET', X, id))
    local run = row and run_of(row)
    return 'D' .. id .. pack('>BI4B', run and RUNNING or job.state, job.version, run and has(run.flags, 1) and 1 or 0)
end

-- The places in the rest of a new record, and what they hold: its key, chunks and payload.
local function read_rest(job)
    local at = 1 + (has(job.flags, 4) and 4 or 0) + (has(job.flags, 8) and 2 or 0)
    job.key_at = at
    if has(job.flags, 16) then job.digest, job.window, at = unp('>c16I7', job.rest, at) end
    job.asked_at, job.within_at = at, behind_chunk(job.rest, at)
    job.payload_at = behind_chunk(job.rest, job.within_at)
    job.bytes = #job.rest - job.payload_at + 1
end

local last = call('HGET', P, key)
if last and number <= unp('>I8', last) then
    -- A repetition (S3): writes nothing.
    local full, answers = {}, {}
    if number == unp('>I8', last) then
        for place = 9, #last, 2 do full[unp('>I2', last, place)] = true end
    end
    for i = 1, n do
        local id, spec, rest = ARGV[at], ARGV[at + 1], ARGV[at + 2]
        at = at + 3
        if full[i] then
            answers[i] = 'F'
        else
            local job = {flags = byte(spec, 3), rest = rest}
            read_rest(job)
            local by = job.digest and call('HEXISTS', J, id) == 0 and holder(job.digest)
            answers[i] = existing(by or id)
        end
    end
    return {concat(answers)}
end

if ARGV[4] == '1' then return {'refused'} end
for i = 1, nq do
    local q = call('HGET', Q, named[i].name)
    if q then
        named[i].q = q
        local version = queue(q).version
        if version ~= named[i].version then return {'stale', text(i), queue(q).stored} end
    elseif named[i].version ~= 0 then
        return {'stale', text(i), ''}
    end
end

local function resolve(kind, ms) return kind == 'a' and ms or min(now + ms, END) end
local jobs = {}
for i = 1, n do
    local spec = ARGV[at + 1]
    local job = {id = ARGV[at], rest = ARGV[at + 2]}
    local kind, ms, expiry, expires
    job.of, job.flags, job.level, kind, ms, expiry, expires, job.conflict, job.wanted = unp('>I2BBc1I7c1I7c1I4', spec)
    job.run_at = max(resolve(kind, ms), now)
    if expiry ~= 'n' then
        job.expires = resolve(expiry, expires)
        if job.expires <= job.run_at then return {'expired', text(i), text(job.expires), text(job.run_at)} end
    end
    read_rest(job)
    jobs[i], at = job, at + 3
end

-- Nothing is refused from here on. What is new is written in one command per place, at the end or before a job that has to
-- see it.
local records, members, listed, expiries, fresh_keys, fresh = {}, {}, {}, {}, {}, {}
local function flush()
    if 0 < #records then
        call('HSET', J, unpack(records))
        call('ZADD', T, unpack(members))
        call('ZADD', D, unpack(listed))
        if 0 < #expiries then call('ZADD', O, unpack(expiries)) end
    end
    records, members, listed, expiries, fresh_keys = {}, {}, {}, {}, {}
end

local function record(job, q, created, rest)
    local flags, times = job.flags, at6(job.run_at)
    if created ~= job.run_at then flags, times = flags + 1, times .. at6(created) end
    if job.expires then flags, times = flags + 2, times .. at6(job.expires) end
    return pack('>BB', flags, job.level) .. q .. times .. rest
end

local function meet(id, new)
    flush()
    local job = load(id)
    if not job or job.state ~= WAITING or new.conflict == 'k' or new.conflict == 'p' and new.wanted ~= 0
        and new.wanted ~= job.version then
        return existing(id)
    end
    leave_waiting(job)
    job.version = job.version + 1
    local tag = 'S'
    if new.conflict == 's' then
        job.moved, job.run_at = true, new.run_at
    else
        -- What was asked for and the payload are new; the key with its window, and what it is compared within, stay.
        tag = 'R'
        local rest = sub(new.rest, 1, new.key_at - 1) .. job.digest .. pack('>I7', job.window)
            .. sub(new.rest, new.asked_at, new.within_at - 1) .. sub(job.rec, job.within_at, job.payload_at - 1)
            .. sub(new.rest, new.payload_at)
        local changed = {flags = new.flags, level = new.level % 16 + 16 * job.scope, run_at = new.run_at, expires = new.expires}
        local rec = record(changed, job.q, job.created, rest)
        call('HSET', J, id, rec)
        tally(job.q, 'b', new.bytes - job.bytes)
        job.moved, job.unexpiring, job.expires = nil, nil, nil
        head(job, rec)
    end
    put_past(job)
    put_waiting(job)
    ring(job.q, job.run_at)
    return tag .. id .. at6(job.run_at)
end

local answers, full, earliest = {}, {}, {}
for i = 1, n do
    local job = jobs[i]
    local id, of = job.id, named[job.of]
    local q, answer = of.q, nil
    local digest = job.digest
    if fresh[id] or call('HEXISTS', J, id) == 1 then
        flush()
        answer = existing(id)
    elseif q and is_derived(id) then
        local ended = call('HGET', M, q .. id)
        if ended and now < unp('>I6', ended) + ID_MEMORY then answer = existing(id) end
    end
    if not answer and digest then
        if fresh_keys[digest] then flush() end
        local by = holder(digest)
        if by then answer = meet(by, job) end
    end
    if not answer and q then
        local settings = queue(q)
        if settings.max_jobs or settings.max_bytes then
            flush()
            local from, to = within(q)
            local bytes = tonumber(call('HGET', C, q .. 'b') or 0) + (tallies[q .. 'b'] or 0)
            if settings.max_jobs and settings.max_jobs <= call('ZLEXCOUNT', T, from, to) + call('ZLEXCOUNT', L, from, to)
                or settings.max_bytes and settings.max_bytes < bytes + job.bytes then
                answer = 'F'
                full[#full + 1] = pack('>I2', i)
            end
        end
    end
    if not answer then
        if not q then
            q = new_queue(of.name, of.row)
            of.q = q
        end
        local rec = record(job, q, now, job.rest)
        records[#records + 1] = id
        records[#records + 1] = rec
        members[#members + 1] = 0
        members[#members + 1] = q .. pack('>BI6', job.level % 16, job.run_at) .. id .. '\0'
        listed[#listed + 1] = 0
        listed[#listed + 1] = id
        if job.expires then
            expiries[#expiries + 1] = 0
            expiries[#expiries + 1] = q .. at6(job.expires) .. id
        end
        fresh[id] = true
        if digest then
            put_key(digest, id, window_end({scope = math.floor(job.level / 16), created = now, window = job.window}))
            fresh_keys[digest] = true
        end
        tally(q, 'b', job.bytes)
        if not earliest[q] or job.run_at < earliest[q] then earliest[q] = job.run_at end
        answer = 'I' .. at6(job.run_at)
    end
    answers[i] = answer
end
flush()
if #full < n then
    call('HSET', P, key, pack('>I8', number) .. concat(full))
    call('ZADD', A, text(now), key)
end
for i = 1, nq do
    local q = named[i].q
    if q then
        bells[q] = KEYS[BELLS + i - 1]
        -- Who waits knows of the first due job: only an earlier one is news.
        if earliest[q] and (earliest[q] <= now or earliest[q] <= first_due(q)) then ring(q, earliest[q]) end
    end
end
put_tallies()
put_rings()
return {concat(answers)}
