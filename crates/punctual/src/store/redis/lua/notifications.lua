-- What is left to be written at the end of a call: made by pending(), which this is the body of, only when something is; so
-- that a ring, which most calls leave, does not need rules(). It captures `shard`, `queue`, `rules` and what keys.lua says.
local tallies, rings, spares, told = {}, {}, {}, {}
shard.tallies = tallies
local function text(n) return string.format('%.0f', n) end
local pending = {}

-- A counter of a queue changes.
function pending.tally(q, what, by)
    local key = q .. what
    tallies[key] = (tallies[key] or 0) + by
end
-- A queue has work at `ms`, if not before.
function pending.ring(q, ms)
    if not rings[q] or ms < rings[q] then rings[q] = ms end
end
-- The queue's row no longer says that two wake: they may not be able to.
function pending.unwatch(q)
    local row = queue(q)
    row.watch, row.hinted = 0, true
end
-- The caller of a reserve wakes for a queue at `ms`, and another process SPARE later: the caller may be dead by then.
function pending.watch(q, ms)
    local row = queue(q)
    row.watch, row.hinted = ms, true
    spares[q] = ms + SPARE
end
-- Tells what somebody may wait for beside work, by its bell.
function pending.tell(bell) told[bell] = true end
-- Upkeep of a queue will be due at `ms`, if not before; at 0 by any clock, which may go back.
function pending.hint(q, ms)
    local row = queue(q)
    if ms < row.due then row.due, row.hinted = ms, true end
end

-- Writes all of it. A ring is for two: `r` for who is to come, and `s` for another, who looks after it SPARE later, since
-- whoever pops a ring may be dead before it answers it; of work there is at once, one such look does for all that comes in
-- that time. A time has two of its own, `t` and `u`, which stand for the row's `watch`. Answers the rings that the caller must ring, whose bells it did not name: name as a chunk, ms6.
function pending.put()
    if shard.hand_over then
        shard.hand_over()
        shard.put_groups()
    end
    for key, by in pairs(tallies) do
        if by ~= 0 then call('HINCRBY', COUNTERS, key, text(by)) end
    end
    local left = {}
    for q, ms in pairs(rings) do
        local bell, row = shard.bells[q], queue(q)
        if not bell then
            left[#left + 1] = rules().name_of(q) .. pack('>I6', ms <= now and 0 or ms)
        elseif now < ms then
            -- Later times are found by whoever wakes for this one.
            if row.watch <= now or ms < row.watch then
                row.watch, row.hinted = ms, true
                call('ZADD', bell, text(ms), 't', text(ms + SPARE), 'u')
            end
        elseif row.spare <= now or now + SPARE < row.spare then
            row.spare, row.hinted = now + SPARE, true
            call('ZADD', bell, 'LT', 0, 'r', text(row.spare), 's')
        else
            call('ZADD', bell, 'LT', 0, 'r')
        end
    end
    for q, ms in pairs(spares) do call('ZADD', shard.bells[q], text(ms), 'u') end
    for q, row in pairs(shard.queues) do
        if row.hinted then
            local upkeep = pack('>I7I7I7', row.due, row.watch, row.spare)
            if 0 < row.closed or 0 < row.arrival or 0 < row.let then
                upkeep = upkeep .. pack('>I7I7I4', row.closed, row.arrival, row.part)
            end
            if 0 < row.let then upkeep = upkeep .. pack('>I7I7I7', row.time, row.own, row.let) end
            call('HSET', SETTINGS, q .. 'w', upkeep)
        end
    end
    for bell in pairs(told) do left[#left + 1] = rules().as_chunk(bell) .. pack('>I6', 0) end
    -- The caller may die before it rings: whoever waits for a minute looks whether this has changed.
    if 0 < #left then call('HSET', STATE, 'left', text(now)) end
    return concat(left)
end
return pending
