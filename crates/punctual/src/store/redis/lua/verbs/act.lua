-- act: changes single jobs at the request of an operator (S11, S12).
-- KEYS: common.
-- ARGV: now, action, its arguments a and b; then per target: id or '', digest or '', precondition: '' or state1
--   version4 (0: any, else 1 more) name.
-- Actions: cancel (a: reason), at (a: ms), in (a: ms), by (a: ms), now, level (a), edit (a: content type as a chunk, b:
--   payload), retry, delete.
-- Answers: first the notifications left to the caller; then per target: tag1 id state1. Tags: D done, R requested, N
--   not found, W wrong state, U unique conflict with id.
-- It stops after a mebibyte of records. Targets without an answer are left to another call. Cost: O(n log N).
drains()
mark()
put_shard()
local action, a, b = ARGV[2], ARGV[3], ARGV[4]
local answers = {}
local load, put_key, window_end = rules().load, rules().put_key, rules().window_end
local put_history, put_waiting, leave_waiting = rules().put_history, rules().put_waiting, rules().leave_waiting
local ENDED = {[$DONE] = true, [$CANCELLED] = true, [$DEAD] = true}

local function answer(tag, job) answers[#answers + 1] = tag .. job.id .. char(job.state) end

local function cancel(job)
    if job.state == $RUNNING then
        if job.run.flags % 2 == 0 then job.run.flags = job.run.flags + 1 end
        rules().put_run(job.id, job.run)
        pending().notify_named('$worker/' .. job.run.worker)
        return answer('R', job)
    end
    leave_waiting(job)
    -- Frees also a window: this is a cancel before the start (S4).
    if not job.started then rules().free_key(job) end
    rules().finish(job, $CANCELLED, a)
    answer('D', job)
end

local function takes_key_again(job)
    if not job.digest then return false end
    if job.scope == $UNTIL_START then return not job.started end
    if job.scope == $WINDOW then return not job.started and now < window_end(job) end
    return true
end

local function retry(job)
    if takes_key_again(job) then
        local other = rules().meet_key(job.digest)
        if other and other ~= job.id then
            answers[#answers + 1] = 'U' .. other .. char(job.state)
            return
        end
        put_key(job)
    end
    rules().leave_ended(job)
    job.state, job.ended, job.reason, job.notes, job.result = $WAITING, nil, nil, nil, nil
    job.attempt, job.expired_leases, job.snoozes = 1, 0, 0
    job.run_at, job.moved, job.version = now, true, job.version + 1
    if job.expires then job.expires, job.unexpiring = nil, true end
    put_history(job)
    put_waiting(job)
    rules().put_live(job)
    pending().tally(job.q, 'b', job.bytes)
    pending().notify(job.q, now)
    answer('D', job)
end

local function change(job)
    leave_waiting(job)
    if action == 'level' then
        job.level, job.moved = tonumber(a), true
    elseif action == 'edit' then
        -- The content type is the beginning of the first chunk, which holds the options.
        local old = rules().behind_chunk(job.rec, job.asked_at)
        local asked = sub(job.rec, job.asked_at, old - 1)
        asked = byte(asked) < 255 and sub(asked, 2) or sub(asked, 6)
        asked = a .. sub(asked, rules().behind_chunk(asked, 1))
        asked = rules().as_chunk(asked)
        local fields = sub(job.rec, job.fields_at, job.asked_at - 1) .. asked .. sub(job.rec, old, job.payload_at - 1)
        local level = byte(job.rec, 2)
        rules().put_record(job, rules().record_of(job.flags % 128, level, job.q, sub(job.rec, 9, job.times_end), fields, b))
        pending().tally(job.q, 'b', #b - job.bytes)
    else
        local ms = tonumber(a)
        if action == 'in' then ms = min(now + ms, $INSTANT_MAX_MS) end
        if action == 'by' then ms = max(0, min(job.run_at + ms, $INSTANT_MAX_MS)) end
        if action == 'now' then ms = now end
        job.run_at, job.moved = max(ms, now), true
        pending().notify(job.q, job.run_at)
    end
    job.version = job.version + 1
    put_history(job)
    put_waiting(job)
    answer('D', job)
end

local function not_found() answers[#answers + 1] = 'N' .. string.rep('\0', 17) end

local function act(job)
    if action == 'cancel' and (job.state == $WAITING or job.state == $RUNNING) then
        cancel(job)
    elseif action == 'retry' and ENDED[job.state] then
        retry(job)
    elseif action == 'delete' and job.state ~= $RUNNING then
        rules().delete(job)
        answer('D', job)
    elseif action == 'cancel' or action == 'retry' or action == 'delete' or job.state ~= $WAITING then
        answer('W', job)
    else
        change(job)
    end
end

for i = 5, #ARGV, 3 do
    local id, digest, guard = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    if id == '' then id = rules().holder(digest) end
    local job = id and load(id)
    if not job or guard ~= '' and number_of(sub(guard, 6)) ~= job.q then
        not_found()
    elseif guard ~= '' and byte(guard) ~= job.state then
        answer('W', job)
    elseif guard ~= '' and sub(guard, 2, 5) ~= '\0\0\0\0' and unp('>I4', guard, 2) ~= job.version + 1 then
        answer('W', job)
    else
        -- A lease that is over is reclaimed first (S9).
        local state = job.state == $RUNNING and rules().reclaim_if_over(job)
        if state == $CANCELLED and action == 'cancel' then
            -- The cancel had been requested.
            answers[#answers + 1] = 'D' .. id .. char(state)
        else
            if state then job = load(id) end
            if job then act(job) else not_found() end
        end
    end
    if $BATCH_BYTES_MAX <= shard.bytes then break end
end
return {put(), concat(answers)}
