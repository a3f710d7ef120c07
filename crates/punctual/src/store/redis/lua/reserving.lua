-- A numbered reserve, from ARGV[from] on: instance8, number, n, lease in ms or 0, worker, names … each with its share and
-- the most jobs it may have.
-- Answers: taken back, next (ms, '' never), then per job: fence8 until6 lasts4 started6 flags1 id worker; record; past.
local function reserving(from, first_bell)
    local instance, number = ARGV[from], tonumber(ARGV[from + 1])
    local n, lease, worker = tonumber(ARGV[from + 2]), tonumber(ARGV[from + 3]), ARGV[from + 4]
    local named, shares, room = {}, {}, {}
    for i = from + 5, #ARGV, 3 do
        local q = call('HGET', Q, ARGV[i])
        if q then
            local at = #named + 1
            named[at], shares[at], room[at] = q, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
            bells[q] = KEYS[first_bell + (i - from - 5) / 3]
        end
    end
    local key = instance .. 'r'
    local last = call('HGET', P, key)
    local answer = {'', ''}
    local function tell(id, rec, x, run)
        answer[#answer + 1] = pack('>I8I6I4I6B', run.fence, run.till, run.lasts, run.started, run.flags) .. id .. run.worker
        answer[#answer + 1] = rec
        answer[#answer + 1] = x
    end
    local function done()
        local next = next_of(named)
        answer[2] = next and text(next) or ''
        return answer
    end
    if last and number <= unp('>I8', last) then
        read_turn()
        if number == unp('>I8', last) and 8 < #last then
            local given = unp('>I8', last, 9)
            for at = 17, #last, 16 do
                local id = sub(last, at, at + 15)
                local row = call('HGET', R, id)
                local rec = row and call('HGET', J, id)
                if rec and unp('>I8', row) == given then
                    tell(id, rec, call('HGET', X, id) or '', run_of(row))
                end
                given = given + 1
            end
        end
        return done()
    end
    turn()
    answer[1] = take_back(named)
    local state = {n = n, candidates = n + CANDIDATES_EXTRA, bytes = 0, parts = true}
    local runs, leases, ids, first = {}, {}, {}, nil
    local function start(job, settings)
        local given = next_fence()
        first = first or given
        if job.digest and job.scope == UNTIL_START then free_key(job) end
        local lasts = job.lease or (0 < lease and lease) or settings.lease
        local run = {
            fence = given, q = job.q, till = min(now + lasts, END), started = now, lasts = lasts, flags = 0,
            bytes = job.bytes, past = job.past, worker = worker,
            digest = job.digest and job.scope == 0 and job.digest or string.rep('\0', 16),
        }
        runs[#runs + 1] = job.id
        runs[#runs + 1] = run_row(run)
        leases[#leases + 1] = 0
        leases[#leases + 1] = job.q .. at6(run.till) .. job.id
        ids[#ids + 1] = job.id
        tell(job.id, job.rec, job.x, run)
    end
    for pass = 1, 2 do
        for i, q in ipairs(named) do
            room[i] = room[i] - pick(q, min(pass == 1 and shares[i] or n, room[i]), now, state, start)
        end
    end
    if first then
        call('HSET', R, unpack(runs))
        call('ZADD', L, unpack(leases))
        put_fence()
    end
    call('HSET', P, key, pack('>I8', number) .. (first and pack('>I8', first) .. concat(ids) or ''))
    call('ZADD', A, text(now), key)
    sweep(named, SWEEP_RIDE_MAX)
    if first then
        -- Whoever got jobs may be busy from now on: somebody else must wake for what is left.
        for _, q in ipairs(named) do
            local due = not queue(q).paused and first_due(q)
            if due then ring(q, due) end
        end
    end
    return done()
end
