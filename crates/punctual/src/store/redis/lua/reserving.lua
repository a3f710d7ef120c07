-- A numbered reserve, from ARGV[from] on: instance8, number, n, lease in ms or 0, worker, names … each with its share and
-- the most jobs it may have. put_turn() must follow.
-- Answers: taken back, next (ms, '' never), then per job: id; run; record; past.
local function reserving(from, first_bell)
    local instance, number = ARGV[from], tonumber(ARGV[from + 1])
    local n, lease, worker = tonumber(ARGV[from + 2]), tonumber(ARGV[from + 3]), ARGV[from + 4]
    local named, shares, room, walks = {}, {}, {}, {}
    for i = from + 5, #ARGV, 3 do
        local q = call('HGET', Q, ARGV[i])
        if q then
            local at = #named + 1
            named[at], shares[at], room[at] = q, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
            bells[q], walks[q] = KEYS[first_bell + (i - from - 5) / 3], walk_of(q)
        end
    end
    read_turn()
    local key = instance .. 'r'
    local last = call('HGET', P, key)
    local answer = {'', ''}
    local function tell(id, run, rec, x)
        local at = #answer
        answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = id, run, rec, x
    end
    -- When there may be work in these queues: a waiting job is due, or a lease past its time.
    local function done()
        local next = NEVER
        for _, q in ipairs(named) do next = min(next, first_due(walks[q]), lease_end(q)) end
        answer[2] = next < NEVER and text(next) or ''
        return answer
    end
    if last and number <= unp('>I8', last) then
        if number == unp('>I8', last) and 14 < #last then
            local given = unp('>I8', last, 15)
            for at = 23, #last, 16 do
                local id = sub(last, at, at + 15)
                local row = call('HGET', R, id)
                local rec = row and call('HGET', J, id)
                if rec and unp('>I8', row) == given then tell(id, row, rec, call('HGET', X, id) or '') end
                given = given + 1
            end
        end
        return done()
    end
    turn()
    answer[1] = take_back(named)
    local state = {n = n, candidates = n + CANDIDATES_EXTRA, bytes = 0, parts = true}
    local runs, leases, ids, first = {}, {}, {}, nil
    -- What the runs of a queue have in common, if they last so long.
    local function frame_of(q, lasts)
        local till = min(now + lasts, END)
        lease_ends[q] = min(lease_ends[q], till)
        return {place = q .. at6(till), times = pack('>I6I4', now, lasts)}
    end
    local frames = {}
    for pass = 1, 2 do
        for i, q in ipairs(named) do
            local usual = frames[q]
            local function start(id, rec, bytes, job)
                usual = usual or frame_of(q, 0 < lease and lease or queue(q).lease)
                local given, frame = next_fence(), usual
                first = first or given
                local run
                if job then
                    if job.lease then frame = frame_of(q, job.lease) end
                    local flags, digest = job.x ~= '' and 2 or 0, ''
                    if job.digest and job.scope == jobs().UNTIL_START then jobs().free_key(job) end
                    if job.digest and job.scope == 0 then flags, digest = flags + 4, job.digest end
                    run = pack('>I8c9BI4', given, frame.place, flags, bytes) .. frame.times .. digest .. worker
                else
                    run = pack('>I8c9BI4', given, frame.place, 0, bytes) .. frame.times .. worker
                end
                local at = #ids + 1
                ids[at] = id
                runs[2 * at - 1], runs[2 * at] = id, run
                leases[2 * at - 1], leases[2 * at] = 0, frame.place .. id
                tell(id, run, rec, job and job.x or '')
            end
            room[i] = room[i] - pick(walks[q], min(pass == 1 and shares[i] or n, room[i]), now, state, start)
            frames[q] = usual
        end
    end
    if first then
        call('HSET', R, unpack(runs))
        call('ZADD', L, unpack(leases))
    end
    put_call(key, last, number, first and pack('>I8', first) .. concat(ids) or '')
    sweep_ride(named, SWEEP_RIDE_MAX)
    if 0 < swept.expired then
        for _, q in ipairs(named) do walks[q] = walk_of(q) end
    end
    if first then
        -- Whoever got jobs may be busy from now on: somebody else must wake for what is left.
        for _, q in ipairs(named) do
            local due = first_due(walks[q])
            if due < NEVER then ring(q, due) end
        end
    end
    return done()
end
