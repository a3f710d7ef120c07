-- set: replaces the settings of a queue if they are still those that the caller read. A copy of the settings in shard 0
-- replaces those that are no later than it. Makes the queue if it is new.
-- KEYS: common, the notification key of the queue.
-- ARGV: now, name, version as read (0: none) or version of a copy, epoch, 'c' for a copy, settings; then per group with
--   limits of its own: gid16, limits.
-- Answers: 1, or 0, or the negative epoch if that is a later one.
-- It checks up to 300 groups in each place again. Groups beyond these that wait for a rate keep their time. Cost:
-- O(groups log N).
local q, version, is_copy = number_of(ARGV[2]), tonumber(ARGV[3]), ARGV[5] == 'c'
if tonumber(ARGV[4]) < shard.epoch then return -shard.epoch end
q = q or rules().found_again(ARGV[2])
local stored = q and queue(q).version or 0
if is_copy and version < stored or not is_copy and version ~= stored then return 0 end
-- Stores the limits of single groups.
local function set_groups()
    local before = call('HGET', $SETTINGS, q .. 'G') or ''
    for at = 1, #before, 16 do call('HDEL', $SETTINGS, q .. 'g' .. sub(before, at, at + 15)) end
    local names = {}
    for i = 7, #ARGV, 2 do
        names[#names + 1] = ARGV[i]
        call('HSET', $SETTINGS, q .. 'g' .. ARGV[i], ARGV[i + 1])
    end
    if 0 < #names then call('HSET', $SETTINGS, q .. 'G', concat(names)) else call('HDEL', $SETTINGS, q .. 'G') end
end
if not q then
    q = rules().new_queue(ARGV[2], ARGV[6])
    set_groups()
else
    -- A queue must be able to go on, or to keep less, when the server is full, too.
    drains()
    rules().wake(q, ARGV[2])
    -- The new settings may keep less, so upkeep is due at once.
    local upkeep, before = call('HGET', $SETTINGS, q .. 'w'), queue(q).flags
    if shard.format < $FORMAT then put_shard() end
    rules().put_settings(q, ARGV[6])
    call('HSET', $SETTINGS, q .. 'w', pack('>I7I7I7', 0, 0, 0) .. (upkeep and sub(upkeep, 22) or ''))
    set_groups()
    shard.queues[q] = nil
    if 0 < queue(q).let and ($GROUPS_LIMITED <= before or $GROUPS_LIMITED <= queue(q).flags) then
        rules().look_at_groups(q)
        rules().hand_over()
    end
    announce(q)
end
return 1
