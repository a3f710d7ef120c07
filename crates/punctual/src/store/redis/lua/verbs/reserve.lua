-- reserve: reclaims expired leases, then leases due jobs in order (S5, S6, S7, S9).
-- KEYS: common, then the notification keys of the queues.
-- ARGV: now, then the arguments of numbered_reserve().
-- Answers: now, microseconds into it, epoch, notifications left to the caller, then the answer of numbered_reserve().
-- Cost: O((n + 256) log N).
drains()
local answer = numbered_reserve(2, $NOTIFICATIONS, $GROUP_SERVICES_MAX)
put_shard()
return {string.format('%.0f', now), shard.into, shard.epoch, put(), unpack(answer)}
