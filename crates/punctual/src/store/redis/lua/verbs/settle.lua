-- settle: ends leases (S8), each named once; sweeps; and can reserve afterwards. Other callers wait for the script. So
-- it stops at WORK_MAX, and does not reserve then.
-- KEYS: common, then the notification keys of the queues of the reserve.
-- ARGV: now, n, n ids, n settlements, then the arguments of the reserve, if there is one. A settlement: fence8, and for
--   any verdict but a bare ack: verdict1 rest.
--   The rest of a verdict: ack: a result: its content type as a chunk, then its bytes; retry, or retry and pause: kind1
--     ms7 error; snooze: ms7 flag1 reason; cancel: reason; dead: error.
--   One verdict is no caller's: h, the job waits for a newer version, and nothing is counted.
-- Answers: now, microseconds into it, epoch, notifications left to the caller; a byte each for n leases, or for fewer
--   if it stopped; then the answer of numbered_reserve(). The byte is '-' for a lost lease. Else it is the state of its job,
--   plus 16 times the reason if that is not the verdict's (OVERRULED in state/runs.lua).
-- Cost: O(n log N).
-- The most work, in commands as they are estimated here. A bare ack of a job without a key and with a short payload counts nothing.
local WORK_MAX = 512
local BYTES_PER_COMMAND = 65536 -- of a payload that is removed
-- An ack that frees a key or a place in a group, and any other verdict.
local KEYED, WHOLE = 4, 8
local SERVICE = 16 -- a service of a group
drains()
local n = tonumber(ARGV[2])
mark()
local rows = 0 < n and call('HMGET', $RUNS, unpack(ARGV, 3, n + 2)) or {}
local answers, named, met, places = {}, {}, {}, {}
-- All acks are written together, with one command for each key.
local runs, leases, records, payloads, histories, kept, ended = {}, {}, {}, {}, {}, {}, {}
local acked, work, is_cut = 0, 0, false
local PLAIN_PAST = pack('>BBI6', 1 + 32, $DONE, now) -- of a job done in its first attempt
for i = 1, n do
    if WORK_MAX <= work then
        is_cut = true
        break
    end
    local id, arg, run = ARGV[i + 2], ARGV[i + n + 2], rows[i]
    if not run or sub(run, 1, 8) ~= (#arg == 8 and arg or sub(arg, 1, 8)) then
        answers[i] = '-'
    else
        local place = sub(run, 9, 17)
        local of = places[place] -- what the acks of a queue have in common
        if not of then
            local q = sub(place, 1, 3)
            of = met[q]
            if not of then
                of = {q = q, acks = 0, bytes = 0, keeps = queue(q).flags % (2 * $KEEPS_NO_DONE) < $KEEPS_NO_DONE}
                met[q], named[#named + 1] = of, q
            end
            places[place] = of
        end
        if #arg == 8 then
            local flags, b1, b2, b3, b4 = byte(run, 18, 22)
            local has_history = flags % 4 >= 2
            acked = acked + 1
            runs[acked], leases[acked] = id, place .. id
            local bytes = ((b1 * 256 + b2) * 256 + b3) * 256 + b4
            of.acks, of.bytes = of.acks + 1, of.bytes + bytes
            -- This payload is removed, or its end removes an older one.
            if $WITHIN_RECORD_MAX < bytes then work = work + bytes / BYTES_PER_COMMAND end
            if 4 <= flags then
                work = work + KEYED
                local keys = rules().run_of(run)
                if keys.digest then rules().free(keys.digest, id) end
                rules().end_keyed(of.q, keys, id)
                rules().end_live(of.q, keys, id)
            end
            local history = has_history and rules().done_history(id, call('HGET', $HISTORIES, id)) or PLAIN_PAST
            if of.keeps then
                local at = #kept
                kept[at + 1], kept[at + 2] = id, history
                ended[at + 1], ended[at + 2] = '0', of.q .. pack('>BI6', $DONE, now) .. id .. sub(run, 19, 22)
            else
                records[#records + 1] = id
                if $WITHIN_RECORD_MAX < bytes then payloads[#payloads + 1] = id end
                if has_history then histories[#histories + 1] = id end
                if math.floor(byte(id, 7) / 16) == $DERIVED then rules().remember(of.q, id, now) end
            end
            answers[i] = '\1'
        else
            work = work + WHOLE
            local job = rules().load(id)
            if job then
                answers[i] = char(rules().verdict(job, sub(arg, 9, 9), sub(arg, 10)))
            else
                rules().end_lost(of.q, id)
                call('HDEL', $RUNS, id)
                call('ZREM', $LEASES, place .. id)
                answers[i] = '-'
                if call('HEXISTS', $RECORDS, id) == 1 then
                    -- It cannot be read.
                    rules().bury(of.q, id, false, 22 <= #run and unp('>I4', run, 19) or nil)
                    answers[i] = char($DEAD + rules().OVERRULED.corrupt)
                end
            end
        end
    end
end
if 0 < acked then
    call('HDEL', $RUNS, unpack(runs))
    call('ZREM', $LEASES, unpack(leases))
    if 0 < #records then call('HDEL', $RECORDS, unpack(records)) end
    if 0 < #payloads then call('HDEL', $PAYLOADS, unpack(payloads)) end
    if 0 < #histories then call('HDEL', $HISTORIES, unpack(histories)) end
    if 0 < #kept then
        call('HSET', $HISTORIES, unpack(kept))
        call('ZADD', $ENDED_JOBS, unpack(ended))
    end
end
for q, of in pairs(met) do
    if 0 < of.acks then
        if of.bytes ~= 0 then add(q .. 'b', -of.bytes) end
        if of.keeps then
            if of.bytes ~= 0 then add(q .. char($DONE), of.bytes) end
            -- Most acks need no upkeep: the last upkeep counted how many need none (see grant() in state/upkeep.lua), and the next one
            -- comes before these jobs are past their age.
            local row = queue(q)
            local age = unp('>I7', row.stored, 24)
            if age == $OPEN then age = $KEEP_SHORT_AGE end
            if now + age < row.due or $END_BYTES * of.acks < of.bytes or add(q .. 'e', -of.acks) < 0 then
                pending().hint(q, 0)
            end
        end
    end
end
sweep_ride(named, #answers)
if made then rules().hand_over() end
local answer = {}
if 2 * n + 2 < #ARGV and not is_cut then
    answer = numbered_reserve(2 * n + 3, $NOTIFICATIONS, $GROUP_SERVICES_MAX - math.floor(work / SERVICE))
end
-- Work that these ends allow to start, and that was not just reserved.
for q in pairs(met) do
    if $LIMITED <= queue(q).flags or now < queue(q).closed or 0 < queue(q).let then
        local due = first_due(walk_of(q))
        if due < $NEVER then pending().notify(q, due) end
    end
end
put_shard()
return {string.format('%.0f', now), shard.into, shard.epoch, put(), concat(answers), unpack(answer)}
