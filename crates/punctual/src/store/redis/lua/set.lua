-- set: replaces the settings of a queue, if they are still those that the caller saw, or, for a copy of those in shard 0, no
-- later ones; makes the queue if it is new.
-- KEYS: common, its bell. ARGV: now, name, version seen (0: none) or of a copy, epoch, 'c' for a copy, settings. Answers: 1,
-- or 0, or the epoch if it is a later one, negative. Cost: O(log N).
local q, version, is_copy = call('HGET', Q, ARGV[2]), tonumber(ARGV[3]), ARGV[5] == 'c'
read_turn()
if tonumber(ARGV[4]) < shard.epoch then return -shard.epoch end
local stored = q and queue(q).version or 0
if is_copy and version < stored or not is_copy and version ~= stored then return 0 end
if not q then
    late().new_queue(ARGV[2], ARGV[6])
else
    -- A full server, too, must let a queue go on, or keep less.
    drains()
    -- What is kept may be less now: upkeep is due at once.
    local upkeep = call('HGET', I, q .. 'w')
    call('HSET', I, q, ARGV[6], q .. 'w', pack('>I7I7I7', 0, 0, 0) .. (upkeep and sub(upkeep, 22) or ''))
    shard.queues[q] = nil
    shard.bells[q] = KEYS[BELLS]
    local due = first_due(walk_of(q))
    if due < NEVER then late().ring(q, due) end
    put()
end
return 1
