-- What the scripts need less often: the names that the parts in state/ define, made by rules().
-- The parts are the body of a nested function. The function around it begins with another copy of key_names.lua. So they
-- capture nothing of the script but `shard`, `queue` and `pending`.
return {
    hint_wide = hint_wide, within = within, behind_chunk = behind_chunk, as_chunk = as_chunk, kept_bytes = kept_bytes, note = note,
    wake = wake, put_settings = put_settings, settings_of = settings_of, limits_of = limits_of, counter = counter, name_of = name_of, new_queue = new_queue,
    ID_MEMORY = ID_MEMORY, UNTIL_START = UNTIL_START, WINDOW = WINDOW,
    head = head, record_of = record_of, put_record = put_record, payload_apart = payload_apart, kind_of = kind_of, history = history, history_of = history_of, put_history = put_history, run_of = run_of, put_run = put_run, set_history = set_history,
    of = of, load = load, bury = bury, is_hidden = is_hidden,
    holder = holder, put_key = put_key, window_end = window_end, free = free, free_key = free_key,
    waiting_member = waiting_member, put_waiting = put_waiting, unwait = unwait, leave_waiting = leave_waiting,
    is_newer = is_newer, hold = hold,
    room_of = room_of, spend = spend, blocked_member = blocked_member, id_in = id_in, touch = touch, is_full = is_full,
    live_member = live_member, put_live = put_live, end_live = end_live, first_live = first_live,
    end_keyed = end_keyed, end_lost = end_lost, is_behind = is_behind, is_blocked = is_blocked, hand_over = hand_over,
    timed = timed, touch_group = touch_group, is_open = is_open, regroup = regroup, let_in = let_in,
    first_active = first_active, leave_active = leave_active, mind_ungrouped = mind_ungrouped, charge = charge, charge_ungrouped = charge_ungrouped,
    first_group = first_group, group_of = group_of, look_at_groups = look_at_groups,
    lease_member = lease_member, extend_lease = extend_lease, set_company = set_company,
    ended_member = ended_member, leave_ended = leave_ended, remember = remember,
    finish = finish, delete = delete, verdict = verdict, OVERRULED = OVERRULED, done_history = done_history, reclaim = reclaim, sweep = sweep,
}
