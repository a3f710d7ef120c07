-- The writes that remain at the end of a call. pending() makes them only if there are some, and this file is its body.
-- So a notification, which most calls leave, does not need rules(). This code captures `shard`, `queue`, `rules` and
-- the words of key_names.lua.
local tallies, notified, spares, named = {}, {}, {}, {}
shard.tallies = tallies
local function text(n) return string.format('%.0f', n) end
local pending = {}

-- Adds to a counter of a queue.
function pending.tally(q, what, by)
    local key = q .. what
    tallies[key] = (tallies[key] or 0) + by
end
-- Notes that a queue has work at `ms`, unless an earlier time is noted.
function pending.notify(q, ms)
    if not notified[q] or ms < notified[q] then notified[q] = ms end
end
-- Removes from the queue's row that two processes wake, because they may not be able to.
function pending.unwatch(q)
    local row = queue(q)
    row.watch, row.hinted = 0, true
end
-- Notes that the caller of a reserve wakes for a queue at `ms`. Another process wakes SPARE later, because the caller
-- may be dead by then.
function pending.watch(q, ms)
    local row = queue(q)
    row.watch, row.hinted = ms, true
    spares[q] = ms + $SPARE
end
-- Notifies the processes that wait for something other than work, by its name.
function pending.notify_named(name) named[name] = true end
-- Notes that upkeep of a queue is due at `ms`, unless it is due earlier. 0 means due by any clock, because a clock can
-- go back.
function pending.hint(q, ms)
    local row = queue(q)
    if ms < row.due then row.due, row.hinted = ms, true end
end

-- Writes all of it.
-- A notification is for two processes: `r` wakes the first one, and `s` another one SPARE later. The process that pops
-- a notification may die before it acts on it. For work that is due now, one such check covers all work that arrives in
-- that time.
-- A time has two notifications of its own, `t` and `u`. They are those of the row's `watch`.
-- Returns the notifications that the caller must send, because it did not name their keys: name as a chunk, ms6.
function pending.put()
    if shard.hand_over then
        shard.hand_over()
        shard.put_groups()
    end
    for key, by in pairs(tallies) do
        if by ~= 0 then shard.add(key, text(by)) end
    end
    local left = {}
    for q, ms in pairs(notified) do
        local notification, row = shard.notifications[q], queue(q)
        if not notification then
            left[#left + 1] = rules().name_of(q) .. pack('>I6', ms <= now and 0 or ms)
        elseif now < ms then
            -- The process that wakes for this time then finds later times.
            if row.watch <= now or ms < row.watch then
                row.watch, row.hinted = ms, true
                call('ZADD', notification, text(ms), 't', text(ms + $SPARE), 'u')
            end
        elseif row.spare <= now or now + $SPARE < row.spare then
            row.spare, row.hinted = now + $SPARE, true
            call('ZADD', notification, 'LT', 0, 'r', text(row.spare), 's')
        else
            call('ZADD', notification, 'LT', 0, 'r')
        end
    end
    for q, ms in pairs(spares) do call('ZADD', shard.notifications[q], text(ms), 'u') end
    for q, row in pairs(shard.queues) do
        if row.hinted then
            local upkeep = pack('>I7I7I7', row.due, row.watch, row.spare)
            if 0 < row.closed or 0 < row.tat or 0 < row.let then
                upkeep = upkeep .. pack('>I7I7I4', row.closed, row.tat, row.part)
            end
            if 0 < row.let then upkeep = upkeep .. pack('>I7I7I7', row.time, row.ungrouped, row.let) end
            call('HSET', $SETTINGS, q .. 'w', upkeep)
        end
    end
    for name in pairs(named) do left[#left + 1] = rules().as_chunk(name) .. pack('>I6', 0) end
    -- The caller may die before it sends them. A process that has waited for a minute checks whether this has changed.
    if 0 < #left then call('HSET', $STATE, 'left', text(now)) end
    return concat(left)
end
return pending
