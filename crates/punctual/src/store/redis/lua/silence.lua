-- The silences of a shard, as core/silence.rs has them (S9, S14). Both paths share this.
-- `silences`: ahead7, up to when a lease can have been extended by a clock that has gone back since; then of each silence that may
-- hold leases back, oldest first: lasted4 ended7. '' if there is nothing.

-- Returns the silences after a mark at `now`. `seen`: the mark before it; below 0 if there is none. They matter only while leases exist.
-- Cost: one command if the last mark is more than half a second ago, or silences are known.
local function noted(silences, seen, now)
    if #silences % 11 ~= 7 then silences = '' end -- none, or something else damaged them
    if seen < 0 or silences == '' and seen <= now and now - seen <= $GAP then return silences end
    local has_leases = 0 < redis.call('HLEN', $RUNS)
    if silences == '' and not has_leases then return silences end
    local ahead, known, lasted = 0, {}, math.min(math.max(now - seen, 0), $SILENCE_MAX)
    if silences ~= '' then ahead = struct.unpack('>I7', silences) end
    if now + $STEP_BACK_MIN < seen and has_leases then ahead = math.max(ahead, seen) end
    if ahead <= now then ahead = 0 end
    for at = 8, #silences - 10, 11 do
        local length, ended = struct.unpack('>I4I7', silences, at)
        ended = math.min(ended, now)
        if now < ended + math.max(math.ceil(4 * length / 5), $SILENCE_PAUSE_MIN) then
            known[#known + 1] = struct.pack('>I4I7', length, ended)
        end
    end
    if has_leases and $GAP < lasted then
        while $SILENCES_MAX <= #known do known[#known] = nil end
        known[#known + 1] = struct.pack('>I4I7', lasted, now)
    end
    return (0 < ahead or 0 < #known) and struct.pack('>I7', ahead) .. table.concat(known) or ''
end
-- Returns when a lease with this end and length can be reclaimed: at its end, or after a pause if a silence holds it back.
local function over_at(silences, till, lasts)
    local at = till
    for from = 8, #silences - 10, 11 do
        local lasted, ended = struct.unpack('>I4I7', silences, from)
        if lasts < 2 * lasted and (ended - lasted < till or lasted == $SILENCE_MAX) and till < math.min(ended + lasts, $INSTANT_MAX_MS) then
            at = math.max(at, math.min(ended + math.max(math.ceil(2 * lasts / 5), $SILENCE_PAUSE_MIN), $INSTANT_MAX_MS))
        end
    end
    return at
end
