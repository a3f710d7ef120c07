-- set: replaces the settings of a queue, if they are still those that the caller saw; makes the queue if it is new.
-- KEYS: common, its bell. ARGV: now, name, version seen (0: none), settings. Answers: 1 or 0. Cost: O(log N).
local q = call('HGET', Q, ARGV[2])
if (q and queue(q).version or 0) ~= tonumber(ARGV[3]) then return 0 end
if not q then
    late().new_queue(ARGV[2], ARGV[4])
else
    -- A full server, too, must let a queue go on, or keep less.
    drains()
    -- What is kept may be less now: upkeep is due at once.
    call('HSET', I, q, ARGV[4], q .. 'w', pack('>I7I7I7', 0, 0, 0))
    shard.queues[q] = nil
    shard.bells[q] = KEYS[BELLS]
    local due = first_due(walk_of(q))
    if due < NEVER then late().ring(q, due) end
    put()
end
return 1
