-- extend: moves the end of leases to now plus their length (S8, S12), or a new length, and stores the notes of their
-- runs. Notifies those who wait for the end of a lease that now ends earlier.
-- KEYS: common, then the notification keys of the queues that are named.
-- ARGV: now, number of queues, their names; then per lease: fence8 id, 1 if it has company from now on, else 0; lasts4, its
--   length from now on, 0 if unchanged; and its notes if they are new.
-- Answers: notifications for the caller to send; a byte per lease: h held, l lost, c cancel requested.
-- Answers before any write, if no queue is named: {names of queues, each as a chunk}, if leases of them end earlier. The caller
--   then names them. So no notification is left to a caller that may be killed.
-- Cost: O(n log N).
local nq = tonumber(ARGV[2])
local first = 3 + nq
for i = 1, nq do
    local q = number_of(ARGV[2 + i])
    if q then shard.notifications[q] = KEYS[$NOTIFICATIONS + i - 1] end
end
-- Returns the run of a lease that is current. One that something else cut short counts as gone: it stops no heartbeat of others.
local function current(right)
    local row = call('HGET', $RUNS, sub(right, 9, 24))
    if not row or sub(row, 1, 8) ~= sub(right, 1, 8) then return nil end
    local is_sound, run = pcall(rules().run_of, row)
    return is_sound and run or nil
end
local names, is_named = {}, {}
for i = first, nq == 0 and #ARGV or 0 do
    local lasts = unp('>I4', ARGV[i], 26)
    local run = 0 < lasts and current(ARGV[i])
    if run and now + lasts < run.till and not is_named[run.q] then
        names[#names + 1], is_named[run.q] = rules().name_of(run.q), true
    end
end
if 0 < #names then return {concat(names)} end
drains()
mark()
put_shard()
local answers = {}
for i = first, #ARGV do
    local id, run = sub(ARGV[i], 9, 24), current(ARGV[i])
    if not run then
        answers[#answers + 1] = 'l'
    else
        if sub(ARGV[i], 25, 25) == '1' then rules().set_company(run) end
        if 29 < #ARGV[i] then rules().note(id, run, sub(ARGV[i], 30)) end
        local till, lasts = run.till, unp('>I4', ARGV[i], 26)
        if 0 < lasts then run.lasts = lasts end
        rules().extend_lease(id, run)
        if run.till < till then pending().notify(run.q, min(run.till, now + math.floor(2 * run.lasts / 5))) end
        answers[#answers + 1] = run.flags % 2 == 1 and 'c' or 'h'
    end
end
return {put(), concat(answers)}
