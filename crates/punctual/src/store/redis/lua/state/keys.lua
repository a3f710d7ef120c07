-- Concurrency keys (S15) and unique keys (S4).
--
-- A due job that is checked while its concurrency key is full is blocked. Each event of the key
-- re-checks the first of its blocked jobs. If that job can run, it returns to the timeline.

-- Notes an event of a key: a run starts or ends, a waiting job leaves or is blocked. hand_over() must follow.
local function touch(q, key)
    local touched = shard.touched or {}
    touched[#touched + 1], shard.touched = q .. key, touched
end
-- Returns how many jobs of a key or a group run.
local function run_of_key(of) return call('ZLEXCOUNT', $RUNNING_KEYS, within(of)) end
-- Returns whether the concurrency key of a job is full.
local function is_full(job) return job.key and job.most <= run_of_key(job.q .. job.key) end
-- Notes an event of a group: a job of it arrives, leaves or moves while it waits, or ends its run. hand_over() must
-- follow.
local function touch_group(q, gid)
    local changed = shard.changed or {}
    changed[q .. gid], shard.changed = true, changed
end
-- The entries of ungrouped jobs with a concurrency key, while they wait or run.
local function live_member(q, key, id) return q .. 'k' .. key .. id end
local function put_live(job)
    if job.key and not job.gid then call('ZADD', $GROUPS_BY_PLACE, '0', live_member(job.q, job.key, job.id)) end
end
local function end_live(q, of, id)
    if of.key and not of.gid then call('ZREM', $GROUPS_BY_PLACE, live_member(q, of.key, id)) end
end
-- Returns a job that waits or runs here, of a group, or else of a concurrency key. Returns '' if only the rate or the
-- pause of the group has state; nil if there is nothing. While one shard has something of it, no other shard can start
-- its jobs (S15).
local function first_live(q, key, gid)
    local function first(set, prefix)
        local from, to = within(prefix)
        return call('ZRANGEBYLEX', set, from, to, 'LIMIT', 0, 1)[1]
    end
    if not gid then
        local member = first($GROUPS_BY_PLACE, q .. 'k' .. key)
        return member and sub(member, 21)
    end
    -- Beside a blocked job there is another job of its key that is not blocked.
    local waiting, running = first($TIMELINE, q .. char($GROUPED) .. gid), first($RUNNING_KEYS, q .. gid)
    if waiting or running then return waiting and sub(waiting, 28, 43) or sub(running, 20) end
    local row = call('HGET', $GROUPS, q .. gid)
    if row and #row == 26 then
        local closed, tat = unp('>I7I7', row, 9)
        if now <= max(closed, tat) then return '' end
    end
end
-- Handles the end of the run of a job with a concurrency key or a group; `of` has these.
local function end_keyed(q, of, id)
    if of.key then
        call('ZREM', $RUNNING_KEYS, q .. of.key .. id)
        touch(q, of.key)
    end
    if of.gid then
        call('ZREM', $RUNNING_KEYS, q .. of.gid .. id)
        touch_group(q, of.gid)
    end
end
-- Does the same for a run without a job, as far as its row can be read.
local function end_lost(q, id)
    local row = call('HGET', $RUNS, id)
    local is_sound, run = pcall(run_of, row or '')
    if is_sound then
        end_keyed(q, run, id)
        end_live(q, run, id)
    end
end
-- Returns the entry by time of a waiting job of a group.
local function timed(q, run_at, id) return q .. 'd' .. pack('>I7', run_at) .. id end
local function first_blocked(prefix, lifo)
    if not lifo then
        local from, to = within(prefix)
        return whole('ZRANGEBYLEX', $TIMELINE, from, to, 1, 48, 64)[1]
    end
    for level = 0, $LEVELS - 1 do
        local from, to = within(prefix .. char(level))
        local first = whole('ZREVRANGEBYLEX', $TIMELINE, to, from, 1, 48, 64)[1]
        if first then return first end
    end
end
-- Returns whether a blocked job of the same key comes before the job of this member of the timeline.
local function is_behind(job, member)
    local lifo = queue(job.q).lifo
    local first = first_blocked(job.q .. char($BLOCKED) .. job.key, lifo)
    if not first then return false end
    -- Level, run_at and id are compared byte by byte, because < depends on the server's locale.
    for i = 0, 22 do
        local ahead, own = byte(first, 21 + i), byte(member, #member - 23 + i)
        if ahead ~= own then return (ahead < own) == (i == 0 or not lifo) end
    end
    return false
end

-- ── unique keys ──

-- Returns when a window ends, as it looks now: see Term in core/silence.rs. Older versions stored no length.
local function end_of(row)
    local till = unp('>I6', row, 17)
    if #row < 35 then return till end
    local lasts, short = unp('>I7I6', row, 23)
    local longest = min(now + lasts, $INSTANT_MAX_MS)
    if till <= longest + $STEP_BACK_MIN then return till end
    return 0 < short and short <= longest + $STEP_BACK_MIN and short or longest
end
-- Returns the holder of a key (S4).
local function holder(digest)
    local row = call('HGET', $UNIQUE_KEYS, digest)
    if not row then return nil end
    local id, till = unp('>c16I6', row)
    if 0 < till then
        if now < end_of(row) then return id end
    elseif call('HEXISTS', $RECORDS, id) == 1 then
        return id
    end
    return nil
end
local function forget_window(digest, row)
    local till = sub(row, 17, 22)
    if till ~= NONE then call('ZREM', $WINDOWS, till .. digest) end
end
local function put_window(digest, id, till, lasts)
    if shard.format < $FORMAT then shard.put_shard() end
    call('HSET', $UNIQUE_KEYS, digest, id .. pack('>I6I7I6', till, lasts, 0))
    call('ZADD', $WINDOWS, 0, at6(till) .. digest)
    hint_wide(till)
end
-- Returns until when a job holds its key if its enqueue decided that, else 0.
local function window_end(job)
    return job.scope == $WINDOW and min(job.created + job.window, $INSTANT_MAX_MS) or 0
end
-- Makes a job the holder of its key.
local function put_key(job)
    local row = call('HGET', $UNIQUE_KEYS, job.digest)
    if row then forget_window(job.digest, row) end
    if job.scope == $WINDOW then
        put_window(job.digest, job.id, window_end(job), job.window)
    else
        call('HSET', $UNIQUE_KEYS, job.digest, job.id .. NONE)
    end
end
-- Does the same as holder() for who needs the key: from then on, a window of a clock that was ahead ends in its length (S14).
local function meet_key(digest)
    local row = call('HGET', $UNIQUE_KEYS, digest)
    if row and #row == 35 then
        local ends = at6(end_of(row))
        if ends ~= sub(row, 17, 22) and ends ~= sub(row, 30) then call('HSET', $UNIQUE_KEYS, digest, sub(row, 1, 29) .. ends) end
    end
    return holder(digest)
end
local function free(digest, id)
    local row = call('HGET', $UNIQUE_KEYS, digest)
    if row and sub(row, 1, 16) == id then
        call('HDEL', $UNIQUE_KEYS, digest)
        forget_window(digest, row)
    end
end
local function free_key(job)
    if job.digest then free(job.digest, job.id) end
end

rules.touch, rules.is_full, rules.touch_group, rules.live_member, rules.put_live, rules.end_live = touch, is_full, touch_group, live_member, put_live, end_live
rules.first_live, rules.end_keyed, rules.end_lost, rules.timed, rules.is_behind, rules.holder = first_live, end_keyed, end_lost, timed, is_behind, holder
rules.put_key, rules.meet_key, rules.window_end, rules.free, rules.free_key = put_key, meet_key, window_end, free, free_key
