-- What is to be known of jobs beyond the hot paths: their rows, their unique keys, their places, and the ends of runs.
local function make_jobs()
    local UNTIL_START, WINDOW = 1, 2
    local FAILURES_MAX, ID_MEMORY = 8, 86400000
    local NONE = pack('>I6', 0)

    -- ── rows ──

    -- The head of a record: flags (1 run_at is not created_at, 2 expires, 4 a lease of its own, 8 max_attempts is not 20,
    -- 16 a unique key), level + 16 × scope, q, bytes before the payload, created_at, then what the flags say, then two chunks
    -- that are the client's own (what a replacement changes, and what stays) and the payload.
    local function head(job, rec)
        local flags, level, q, skip, created, at = unp('>BBc3I3I6', rec)
        job.q, job.level, job.scope, job.created = q, level % 16, math.floor(level / 16), created
        if has(flags, 1) then job.run_at, at = unp('>I6', rec, at) else job.run_at = created end
        if has(flags, 2) then job.expires, at = unp('>I6', rec, at) end
        if has(flags, 4) then job.lease, at = unp('>I4', rec, at) end
        if has(flags, 8) then job.max_attempts, at = unp('>I2', rec, at) else job.max_attempts = 20 end
        if has(flags, 16) then job.digest, job.window, at = unp('>c16I7', rec, at) end
        job.asked_at, job.payload_at, job.bytes = at, skip + 1, #rec - skip
        if job.bytes < 0 then error('a record ends before its payload') end
    end

    -- A past: flags, then what they say: 1 started once, 2 run_at and level are these, 4 expires no more, 8 counts,
    -- 16 version, 32 ended: state and when, 64 reason, 128 failures.
    local function past(job, x)
        job.attempt, job.crashes, job.snoozes, job.version, job.failures = 1, 0, 0, 1, {}
        job.past, job.x = x and '\1' or '\0', x or ''
        if not x then return end
        local flags, at, length = byte(x, 1), 2, nil
        job.started = has(flags, 1)
        if has(flags, 2) then
            job.moved = true
            job.run_at, job.level, at = unp('>I6B', x, at)
        end
        if has(flags, 4) then job.unexpiring, job.expires = true, nil end
        if has(flags, 8) then job.attempt, job.crashes, job.snoozes, at = unp('>I4BI2', x, at) end
        if has(flags, 16) then job.version, at = unp('>I4', x, at) end
        if has(flags, 32) then job.state, job.ended, at = unp('>BI6', x, at) end
        if has(flags, 64) then
            length, at = unp('>I2', x, at)
            job.reason = sub(x, at, at + length - 1)
            at = at + length
        end
        while at <= #x do
            length, at = unp('>I2', x, at)
            job.failures[#job.failures + 1] = sub(x, at, at + length - 1)
            at = at + length
        end
    end
    local function past_of(job)
        local flags, out = 0, {''}
        local function put(bit, bytes)
            flags = flags + bit
            out[#out + 1] = bytes
        end
        if job.started then put(1, '') end
        if job.moved then put(2, pack('>I6B', job.run_at, job.level)) end
        if job.unexpiring then put(4, '') end
        if 1 < job.attempt or 0 < job.crashes or 0 < job.snoozes then
            put(8, pack('>I4BI2', job.attempt, job.crashes, job.snoozes))
        end
        if 1 < job.version then put(16, pack('>I4', job.version)) end
        if job.ended then put(32, pack('>BI6', job.state, job.ended)) end
        if job.reason then put(64, pack('>I2', #job.reason) .. job.reason) end
        if 0 < #job.failures then
            put(128, '')
            for _, failure in ipairs(job.failures) do out[#out + 1] = pack('>I2', #failure) .. failure end
        end
        out[1] = char(flags)
        return 0 < flags and concat(out) or ''
    end
    local function put_past(job)
        local x = past_of(job)
        if x ~= '' then
            call('HSET', X, job.id, x)
            job.past = '\1'
        elseif job.past == '\1' then
            call('HDEL', X, job.id)
            job.past = '\0'
        end
    end

    -- A run: fence, q, until, flags (1 a cancel was asked for, 2 the job has a past, 4 its end frees a key), bytes of the
    -- payload, started, how long an extension lasts, the digest of that key, worker.
    local function run_of(row)
        local run, at = {}, nil
        run.fence, run.q, run.till, run.flags, run.bytes, run.started, run.lasts, at = unp('>I8c3I6BI4I6I4', row)
        run.past = has(run.flags, 2) and '\1' or '\0'
        if has(run.flags, 4) then run.digest, at = unp('>c16', row, at) end
        run.worker = sub(row, at)
        return run
    end
    local function put_run(id, run)
        call('HSET', R, id, pack('>I8', run.fence) .. run.q .. pack('>I6BI4I6I4', run.till, run.flags, run.bytes, run.started,
            run.lasts) .. (run.digest or '') .. run.worker)
    end

    -- A job of a record and a past.
    local function of(id, rec, x)
        local job = {id = id, rec = rec, state = WAITING}
        head(job, rec)
        past(job, x)
        return job
    end
    -- A job with its place, or nil.
    local function load(id)
        local rec = call('HGET', J, id)
        if not rec then return nil end
        local job = of(id, rec, call('HGET', X, id))
        job.row = call('HGET', R, id)
        if job.row then
            job.state, job.run = RUNNING, run_of(job.row)
        end
        return job
    end
    -- Whether reads hide a job: it ended, and is past the age that its queue keeps it for (S17).
    local function is_hidden(job)
        return job.ended and job.ended + queue(job.q).keep[job.state][1] <= now
    end

    -- ── unique keys ──

    -- Who holds a key (S4).
    local function holder(digest)
        local row = call('HGET', U, digest)
        if not row then return nil end
        local id, till = unp('>c16I6', row)
        if 0 < till then
            if now < till then return id end
        elseif call('HEXISTS', J, id) == 1 then
            return id
        end
        return nil
    end
    local function put_key(digest, id, till)
        local row = call('HGET', U, digest)
        if row and sub(row, 17) ~= NONE then call('ZREM', V, sub(row, 17) .. digest) end
        call('HSET', U, digest, id .. at6(till))
        if 0 < till then
            call('ZADD', V, 0, at6(till) .. digest)
            read_turn()
            if till < wide then
                wide = till
                put_turn()
            end
        end
    end
    -- Until when a job holds its key, if that is settled by its enqueue; else 0.
    local function window_end(job)
        return job.scope == WINDOW and min(job.created + job.window, END) or 0
    end
    local function free(digest, id)
        local row = call('HGET', U, digest)
        if row and sub(row, 1, 16) == id then
            call('HDEL', U, digest)
            if sub(row, 17) ~= NONE then call('ZREM', V, sub(row, 17) .. digest) end
        end
    end
    local function free_key(job)
        if job.digest then free(job.digest, job.id) end
    end

    -- ── places ──

    local function waiting_member(job) return job.q .. pack('>BI6', job.level, job.run_at) .. job.id .. job.past end
    local function put_waiting(job)
        call('ZADD', T, 0, waiting_member(job))
        if job.expires then
            call('ZADD', O, 0, job.q .. at6(job.expires) .. job.id)
            hint(job.q, job.expires)
        end
        if 1 < job.attempt then tally(job.q, 'r', 1) end
    end
    -- What a waiting job leaves besides its member.
    local function unwait(job)
        if job.expires then call('ZREM', O, job.q .. at6(job.expires) .. job.id) end
        if 1 < job.attempt then tally(job.q, 'r', -1) end
    end
    local function leave_waiting(job)
        call('ZREM', T, waiting_member(job))
        unwait(job)
    end
    local function lease_member(job) return job.q .. at6(job.run.till) .. job.id end
    local function ended_member(job)
        return job.q .. pack('>BI6', job.state, job.ended) .. job.id .. pack('>I4', job.bytes)
    end
    local function leave_ended(job)
        call('ZREM', E, ended_member(job))
        tally(job.q, char(job.state), -job.bytes)
    end
    -- A derived id outlives its record (S17).
    local function remember(q, id, ended)
        if math.floor(byte(id, 7) / 16) ~= 8 or ended + ID_MEMORY <= now then return end
        local old = call('HGET', M, q .. id)
        if old then call('ZREM', K, q .. old .. id) end
        call('HSET', M, q .. id, at6(ended))
        call('ZADD', K, 0, q .. at6(ended) .. id)
        hint(q, now)
    end
    -- Removes the record of a job that has left its place.
    local function remove(job)
        call('HDEL', J, job.id)
        if job.past == '\1' then call('HDEL', X, job.id) end
        remember(job.q, job.id, job.ended or now)
    end
    -- Ends a job that has left its place.
    local function finish(job, state, reason)
        job.state, job.ended, job.reason = state, now, reason
        if job.scope ~= WINDOW then free_key(job) end
        tally(job.q, 'b', -job.bytes)
        if keeps_nothing(queue(job.q).keep[state]) then
            remove(job)
        else
            put_past(job)
            call('ZADD', E, 0, ended_member(job))
            tally(job.q, char(state), job.bytes)
            hint(job.q, now)
        end
    end
    -- Removes a job that somebody deletes or purges; unlike age, that frees a window whose job never started.
    local function delete(job)
        if job.state == WAITING then
            leave_waiting(job)
            tally(job.q, 'b', -job.bytes)
        else
            leave_ended(job)
        end
        if not (job.scope == WINDOW and job.started) then free_key(job) end
        remove(job)
    end

    -- ── runs that end (the same arithmetic as lifecycle.rs) ──

    -- The end of a run. `next`: state, attempt, crashes, snoozes, run_at or nil, reason, failed (words or nil).
    local function leave_run(job, next)
        local run = job.run
        call('HDEL', R, job.id)
        call('ZREM', L, lease_member(job))
        if next.failed then
            local failures = job.failures
            failures[#failures + 1] =
                pack('>I4I6I6I2', job.attempt, run.started, now, #run.worker) .. run.worker .. next.failed
            if FAILURES_MAX < #failures then table.remove(failures, 1) end
        end
        job.attempt, job.crashes, job.snoozes = next.attempt, next.crashes or 0, next.snoozes or 0
        job.started, job.run = true, nil
        if next.state ~= WAITING then return finish(job, next.state, next.reason) end
        job.state, job.reason = WAITING, next.reason
        if next.run_at and next.run_at ~= job.run_at then job.run_at, job.moved = next.run_at, true end
        put_past(job)
        put_waiting(job)
        ring(job.q, job.run_at)
    end
    -- The end of a run whose lease is past its time (S9).
    local function taken_back(job)
        local next = {attempt = job.attempt, crashes = job.crashes + 1, snoozes = job.snoozes, failed = 'lease taken back'}
        if has(job.run.flags, 1) then
            next.state, next.reason = CANCELLED, 'cancelled'
        elseif POISON_LIMIT <= next.crashes then
            next.state, next.reason = DEAD, 'crashes'
        elseif job.max_attempts <= job.attempt then
            next.state, next.reason = DEAD, 'attempts'
        else
            next.state, next.attempt = WAITING, job.attempt + 1
            if 2 <= next.crashes then
                local step, low16 = (next.crashes - 1) * job.run.lasts, byte(job.id, 15) * 256 + byte(job.id, 16)
                next.run_at = min(now + step + math.floor(step * low16 / 65536), END)
            end
        end
        leave_run(job, next)
        return next.state
    end

    return {
        ID_MEMORY = ID_MEMORY, UNTIL_START = UNTIL_START, WINDOW = WINDOW,
        head = head, past = past, past_of = past_of, put_past = put_past, run_of = run_of, put_run = put_run,
        of = of, load = load, is_hidden = is_hidden,
        holder = holder, put_key = put_key, window_end = window_end, free = free, free_key = free_key,
        waiting_member = waiting_member, put_waiting = put_waiting, unwait = unwait, leave_waiting = leave_waiting,
        lease_member = lease_member, ended_member = ended_member, leave_ended = leave_ended, remember = remember,
        finish = finish, delete = delete, leave_run = leave_run, taken_back = taken_back,
    }
end
local made_jobs
local function jobs()
    made_jobs = made_jobs or make_jobs()
    return made_jobs
end
