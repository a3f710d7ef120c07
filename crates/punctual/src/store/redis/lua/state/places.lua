-- The places of a job: waiting, under a lease, or ended; and the moves between them.

-- Notifies the callers that wait for the end of a job, if there are any.
local function notify_end(job)
    if not job.watched then return end
    job.watched = nil
    notify_named('$end/' .. string.gsub(job.id, '.', function(c) return string.format('%02x', byte(c)) end))
end
-- Quarantines a job that cannot be read and has left its place: no worker can run it, and people may want to see it.
-- `had_ended`: its bytes are not among those of live jobs. `live`: how many bytes it has there, if its run says so.
local function bury(q, id, had_ended, live)
    -- The head of the record may still say how large the job is.
    local job, rec = {}, call('HGET', $RECORDS, id)
    local bytes = rec and pcall(head, job, rec) and job.bytes or 0
    if job.key and not job.gid then call('ZREM', $GROUPS_BY_PLACE, q .. 'k' .. job.key .. id) end
    -- Whether a caller waits for it cannot be read, so it is notified in any case.
    notify_end({id = id, watched = true})
    call('HSET', $HISTORIES, id, pack('>BBI6', 32 + 64, $DEAD, now) .. pack('>I2', 7) .. 'corrupt')
    call('ZADD', $ENDED_JOBS, '0', q .. pack('>BI6', $DEAD, now) .. id .. pack('>I4', bytes))
    if not had_ended then tally(q, 'b', -(live or bytes)) end
    tally(q, char($DEAD), bytes)
    hint(q, 0)
end

local function waiting_member(job)
    local prefix = job.gid and job.q .. char($GROUPED) .. job.gid or job.q
    return prefix .. pack('>BI6', job.level, job.run_at) .. job.id .. job.history
end
local function put_waiting(job)
    call('ZADD', $TIMELINE, '0', waiting_member(job))
    if job.gid then
        call('ZADD', $GROUPS_BY_PLACE, '0', timed(job.q, job.run_at, job.id))
        touch_group(job.q, job.gid)
    end
    if job.expires then
        call('ZADD', $EXPIRIES, '0', job.q .. at6(job.expires) .. job.id)
        hint(job.q, job.expires)
    end
    if 1 < job.attempt then tally(job.q, 'r', 1) end
end
-- Removes the entries of a waiting job other than its member in the timeline.
local function unwait(job)
    if job.expires then call('ZREM', $EXPIRIES, job.q .. at6(job.expires) .. job.id) end
    if 1 < job.attempt then tally(job.q, 'r', -1) end
end
-- Returns the member of TIMELINE of a blocked job.
local function blocked_member(job)
    return job.q .. char($BLOCKED) .. job.key .. sub(waiting_member(job), -24) .. pack('>I4', job.most) .. (job.gid or '')
end
local function leave_waiting(job)
    call('ZREM', $TIMELINE, waiting_member(job))
    if job.key then
        call('ZREM', $TIMELINE, blocked_member(job))
        touch(job.q, job.key)
    end
    if job.gid then
        call('ZREM', $GROUPS_BY_PLACE, timed(job.q, job.run_at, job.id))
        touch_group(job.q, job.gid)
    end
    unwait(job)
end
-- Returns whether a newer version gave a job options that this one does not know. For a reserve, the caller finds that
-- out, because it reads all options. A take has no time for that.
local ASKED = {backoff = true, timeout_ms = true, tags = true, headers = true}
local WITHIN = {group = true, concurrency = true, unique = true}
local function is_newer(job)
    local asked, at = chunk(job.rec, job.asked_at)
    local within_it = chunk(job.rec, at)
    local function has_others(options, known)
        if options == '' then return false end
        local is_sound, fields = pcall(cjson.decode, options)
        for name in pairs(is_sound and type(fields) == 'table' and fields or {}) do
            if not known[name] then return true end
        end
        return false
    end
    -- The options come after a content type and a kind, or after the name of the queue.
    return asked and has_others(sub(asked, behind_chunk(asked, behind_chunk(asked, 1))), ASKED)
        or within_it and has_others(sub(within_it, behind_chunk(within_it, 1)), WITHIN)
end
-- Delays a waiting job that only a newer version may run, and that has left the timeline. Nothing is counted.
local function hold(job)
    unwait(job)
    job.run_at, job.moved = min(now + $HELD_FOR, $INSTANT_MAX_MS), true
    put_history(job)
    put_waiting(job)
    if job.key then touch(job.q, job.key) end
    notify(job.q, job.run_at)
end
-- Returns the id in a member of TIMELINE or ENDED_JOBS.
local function id_in(member)
    local at = byte(member, 4) < $BLOCKED and 11 or 28
    return sub(member, at, at + 15)
end
local function lease_member(job) return job.q .. at6(job.run.till) .. job.id end
-- Moves the end of a lease to now plus its length. Returns the new row of the run.
local function extend_lease(id, run)
    call('ZREM', $LEASES, run.q .. at6(run.till) .. id)
    run.till = min(now + run.lasts, $INSTANT_MAX_MS)
    call('ZADD', $LEASES, '0', run.q .. at6(run.till) .. id)
    return put_run(id, run)
end
-- Returns the bytes that count for the queue's retention: those of payload and result.
local function kept_bytes(job)
    return job.bytes + (job.result and #job.result - behind_chunk(job.result, 1) + 1 or 0)
end
local function ended_member(job)
    return job.q .. pack('>BI6', job.state, job.ended) .. job.id .. pack('>I4', kept_bytes(job))
end
local function leave_ended(job)
    call('ZREM', $ENDED_JOBS, ended_member(job))
    tally(job.q, char(job.state), -kept_bytes(job))
end
-- Remembers a derived id after its record is gone (S17).
local function remember(q, id, ended)
    if math.floor(byte(id, 7) / 16) ~= $DERIVED or ended + $ID_MEMORY <= shard.steady() then return end
    local old = call('HGET', $REMEMBERED, q .. id)
    if old then call('ZREM', $REMEMBERED_BY_END, q .. old .. id) end
    call('HSET', $REMEMBERED, q .. id, at6(ended))
    call('ZADD', $REMEMBERED_BY_END, 0, q .. at6(ended) .. id)
    hint(q, 0)
end
-- Removes the record of a job that has left its place.
local function remove(job)
    call('HDEL', $RECORDS, job.id)
    if job.apart then
        call('HDEL', $PAYLOADS, job.id)
        shard.bytes = shard.bytes + job.apart / $REMOVED_PER_READ
    end
    if job.history == '\1' then call('HDEL', $HISTORIES, job.id) end
    remember(job.q, job.id, job.ended or now)
end
-- Ends a job that has left its place.
local function finish(job, state, reason)
    job.state, job.ended, job.reason = state, now, reason
    if state ~= $DONE then job.result = nil end
    notify_end(job)
    if job.scope ~= $WINDOW then free_key(job) end
    end_live(job.q, job, job.id)
    tally(job.q, 'b', -job.bytes)
    if keeps_nothing(job.q, state) then
        remove(job)
    else
        put_history(job)
        call('ZADD', $ENDED_JOBS, '0', ended_member(job))
        tally(job.q, char(state), kept_bytes(job))
        hint(job.q, 0)
    end
end
-- Removes a job that an operator deletes or purges. Unlike age, that frees the window of a job that never started.
local function delete(job)
    if job.state == $WAITING then
        leave_waiting(job)
        end_live(job.q, job, job.id)
        tally(job.q, 'b', -job.bytes)
    else
        leave_ended(job)
    end
    if not (job.scope == $WINDOW and job.started) then free_key(job) end
    notify_end(job)
    remove(job)
end

rules.bury, rules.waiting_member, rules.put_waiting, rules.unwait, rules.blocked_member = bury, waiting_member, put_waiting, unwait, blocked_member
rules.leave_waiting, rules.is_newer, rules.hold, rules.id_in, rules.lease_member, rules.extend_lease = leave_waiting, is_newer, hold, id_in, lease_member, extend_lease
rules.kept_bytes, rules.ended_member, rules.leave_ended, rules.remember, rules.finish = kept_bytes, ended_member, leave_ended, remember, finish
rules.delete = delete
