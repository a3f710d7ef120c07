-- Upkeep that rides on reserve, take and settle, where some is due (S17): up to 100 items, and `more` for what was settled.
local function sweep_ride(named, more)
    local is_due = shard.wide <= now
    for _, q in ipairs(named) do is_due = is_due or queue(q).due <= now end
    if is_due then late().sweep(named, 100 + more) end
end
