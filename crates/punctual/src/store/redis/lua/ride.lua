-- Upkeep that rides on reserve, take and settle, where some is due (S17): some items, and `more` for what was settled.
local function sweep_ride(named, more)
    local SWEEP_RIDE_MAX = $SWEEP_RIDE_MAX
    local is_due = shard.wide <= now
    for _, q in ipairs(named) do is_due = is_due or queue(q).due <= now end
    if is_due then late().sweep(named, SWEEP_RIDE_MAX + more) end
end
