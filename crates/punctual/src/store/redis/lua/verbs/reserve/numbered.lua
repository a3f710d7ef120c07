-- A numbered reserve. A repetition extends the leases of the jobs that it returns. put_shard() must follow.
-- ARGV, from ARGV[from] on: instance8; number; n; lease in ms or 0; the worker as it is stored in a run; 1 if a suspect
--   has company, else 0; then per queue: its name, its share, the most jobs that it can have, and the times at which
--   the caller's process wakes for it. The times are at7 …, or '-': the caller uses its own timer whatever others do; or '?': so it does,
--   and the processes that wake for the time in the queue's row may be dead.
-- `services`: how many services groups can get.
-- Answers: reclaimed leases; next (ms, '' never); per name: when there may be work (at7, NEVER: nothing will come), and
--   whether the caller's process must wake for it (1, or 0: two others do); then per job: id; run; record; its payload,
--   if the record says that it is stored apart; its history, if the run says that it has one.
--
-- A time wakes one idle process and, SPARE later, another one (`watch` in the queue's row). A caller that has slots
-- left becomes the first of them, and the spare notification goes to the queue's key. A caller whose slots are full, or
-- that cannot wait, leaves both to the key.
local function numbered_reserve(from, first_notification, services)
    local n, lease, worker = tonumber(ARGV[from + 2]), tonumber(ARGV[from + 3]), ARGV[from + 4]
    local company = ARGV[from + 5] == '1'
    local named, shares, room, walks, places, holds, doubts = {}, {}, {}, {}, {}, {}, {}
    local wakes, nothing = {}, pack('>I7B', $NEVER, 0)
    for i = from + 6, #ARGV, 4 do
        local q, place = number_of(ARGV[i]), (i - from - 6) / 4
        wakes[place + 1] = nothing
        if q then
            local at = #named + 1
            named[at], shares[at], room[at] = q, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
            places[at], holds[at] = place + 1, ARGV[i + 3] ~= '-' and ARGV[i + 3] ~= '?' and ARGV[i + 3]
            doubts[at] = ARGV[i + 3] == '?'
            shard.notifications[q], walks[q] = KEYS[first_notification + place], walk_of(q)
        end
    end
    local answer = {'', '', ''}
    local key, number = ARGV[from] .. 'r', tonumber(ARGV[from + 1])
    local last = last_call(key, number)
    local is_repetition = last and number <= unp('>I8', last)
    -- `ends`: q → when its first lease ends; `first`: the first fence; `left_over`: slots that got no job.
    local ends, first, left_over = {}, nil, 0
    local function read_end(q)
        local first = call('ZRANGEBYLEX', $LEASES, '[' .. q, '(' .. q .. '\255', 'LIMIT', 0, 1)[1]
        if first and #first ~= 25 then
            rules().set_aside($LEASES, first)
            return now
        end
        return first and unp('>I6', first, 4) or $NEVER
    end
    if is_repetition then
        if number == unp('>I8', last) and 14 < #last then
            local given = unp('>I8', last, 15)
            for at = 23, #last, 16 do
                local id = sub(last, at, at + 15)
                local run = call('HGET', $RUNS, id)
                local rec = run and call('HGET', $RECORDS, id)
                local is_sound, parts = pcall(rules().run_of, run or '')
                if rec and is_sound and sub(run, 1, 8) == pack('>I8', given) then
                    -- The answer may have been on the way for longer than the lease lasts.
                    run = rules().extend_lease(id, parts)
                    local to = #answer
                    answer[to + 1], answer[to + 2], answer[to + 3] = id, run, rec
                    answer[to + 4] = rules().payload_apart(id, rec)
                    if byte(run, 18) % 4 >= 2 then answer[#answer + 1] = call('HGET', $HISTORIES, id) or '' end
                end
                given = given + 1
            end
        end
        for _, q in ipairs(named) do ends[q] = read_end(q) end
    else
        mark()
        local is_past = false
        for i, q in ipairs(named) do
            -- This caller sees all work notified so far. Work that comes next gets a spare notification of its own.
            local row = queue(q)
            if now < row.spare and 0 < n and 0 < room[i] then
                pending()
                row.spare, row.hinted = 0, true
            end
            ends[q] = ends[q] or read_end(q)
            is_past = is_past or ends[q] <= now
        end
        if is_past or shard.can_end_late() then
            answer[1] = rules().reclaim(named)
            rules().hand_over()
            for _, q in ipairs(named) do ends[q] = read_end(q) end
        end

        local state = {n = n, candidates = n + $CANDIDATES_EXTRA, services = services, bytes = 0, parts = not company}
        local runs, leases, ids = {}, {}, {}
        local given, filled = 0, #answer
        local fence = max(shard.fence, now * 1000)
        for pass = 1, 2 do
            for i, q in ipairs(named) do
                -- What runs of the usual length have in common: the place of their leases, their start and their
                -- length.
                local place, rest
                local function start(id, rec, bytes, job)
                    local lasts = job and job.lease or 0 < lease and lease or queue(q).lease
                    if job and job.lease or not place then
                        local till = min(now + lasts, $INSTANT_MAX_MS)
                        ends[q] = min(ends[q], till)
                        place, rest = q .. pack('>I6', till), pack('>I6I4', now, lasts)
                    end
                    fence = fence + 1
                    first = first or fence
                    local flags, digest = 0, ''
                    if job then
                        if job.x ~= '' then flags = 2 end
                        if job.digest and job.scope == $UNTIL_START then rules().free_key(job) end
                        if job.digest and job.scope == 0 then flags, digest = flags + 4, job.digest end
                        if job.key then
                            flags, digest = flags + 8, digest .. job.key
                            call('ZADD', $RUNNING_KEYS, '0', q .. job.key .. id)
                            rules().touch(q, job.key)
                        end
                        if job.gid then
                            flags, digest = flags + 16, digest .. job.gid
                            call('ZADD', $RUNNING_KEYS, '0', q .. job.gid .. id)
                        end
                        if company and $POISON_LIMIT <= job.expired_leases + 1 then flags = flags + 32 end
                    end
                    local run = pack('>I8c9BI4', fence, place, flags, bytes) .. rest .. digest .. worker
                    runs[2 * given + 1], runs[2 * given + 2] = id, run
                    leases[2 * given + 1], leases[2 * given + 2] = '0', place .. id
                    given = given + 1
                    ids[given] = id
                    answer[filled + 1], answer[filled + 2], answer[filled + 3] = id, run, rec
                    filled = filled + 3
                    -- As payload_apart() does, without the cost of rules().
                    if 128 <= byte(rec) then
                        filled = filled + 1
                        answer[filled] = call('HGET', $PAYLOADS, id) or ''
                    end
                    if flags % 4 >= 2 then
                        filled = filled + 1
                        answer[filled] = job.x
                    end
                    if job and job.lease then place = nil end
                end
                room[i] = room[i] - pick_groups(walks[q], min(pass == 1 and shares[i] or n, room[i]), now, state, start)
            end
            if state.n == 0 then break end
        end
        if first then
            call('HSET', $RUNS, unpack(runs))
            call('ZADD', $LEASES, unpack(leases))
            shard.fence = fence
            for _, q in ipairs(named) do queue(q).started = 0 end
        end
        put_call(key, last, number, first and pack('>I8', first) .. concat(ids) or '')
        sweep_ride(named, 0)
        local is_handed = made and rules().hand_over()
        if is_handed or shard.swept and 0 < shard.swept.expired then
            for _, q in ipairs(named) do walks[q] = walk_of(q) end
        end
        left_over = state.n
    end
    -- When a call is needed in these queues: a waiting job is due, a lease expires, or it needs a mark.
    local next = $NEVER
    for i, q in ipairs(named) do
        local till, due, row, held = ends[q], first_due(walks[q]), queue(q), holds[i]
        if now < due and till < $NEVER then till = watch_of(q) end
        local at = min(due, till)
        next = min(next, at)
        local is_news = now < at and at < $NEVER and (row.watch <= now or at < row.watch)
        local is_held = false
        if now < at and now < row.watch then
            for j = 1, held and #held or 0, 7 do is_held = is_held or unp('>I7', held, j) == row.watch end
        end
        -- The caller's own leases are watched by other processes (S9).
        local may_be_mine = due <= till or is_held and row.watch == at
        local is_mine = not held
        if at <= now then
            -- A caller that got jobs may be busy from now on, so another process must look for the remaining work.
            if first and due <= now then pending().notify(q, due) end
        elseif held and 0 < left_over and 0 < room[i] and (is_held or is_news) and may_be_mine then
            is_mine = true
            if row.watch ~= at then pending().watch(q, at) end
        elseif is_news or is_held or doubts[i] or is_repetition and at < $NEVER or first and not held and due < $NEVER then
            -- If the caller repeats its call, the first answer is not known here.
            pending().unwatch(q)
            if at < $NEVER or not doubts[i] then pending().notify(q, at) end
        end
        if at < $NEVER then wakes[places[i]] = pack('>I7B', at, is_mine and 1 or 0) end
    end
    answer[3] = concat(wakes)
    if next < $NEVER then answer[2] = string.format('%.0f', next) end
    return answer
end
