-- Going through all queues by name that hold something, some in one script (S13).

-- The next queues: their names, and where to go on behind them, '' behind the last. `from`: the same of the script before,
-- '' for the first one.
local function next_queues(from)
    local QUEUES_MAX = 256 -- with nothing to do for it each costs some ten commands
    local names = call('ZRANGEBYLEX', N, from == '' and '(\1' or from, '+', 'LIMIT', 0, QUEUES_MAX + 1)
    local left = names[QUEUES_MAX + 1]
    names[QUEUES_MAX + 1] = nil
    return names, left and '[' .. left or ''
end
