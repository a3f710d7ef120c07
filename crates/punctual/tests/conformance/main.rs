//! The contract, case by case, for every store: ONE list of cases × the stores, none skipped for any of them.
//!
//! A case is an async function that takes a [`Fixture`](fixture::Fixture); its name is a sentence, its doc comment names
//! the rules of `ARCHITECTURE.md` that it shows (`tests/tidy.rs` fails if a rule has none). Expected values are written
//! by hand. A case that is not on the list below is an error: nothing else calls it.

#![deny(dead_code)]
#![expect(clippy::unwrap_used, reason = "cases are tests; clippy takes only functions with #[test] for such")]
#![expect(clippy::assigning_clones, reason = "`job.queue = \"bulk\".to_owned()` is what a reader expects")]

mod act;
mod audit;
mod board;
mod cancel;
mod cap;
mod concurrency;
mod doc;
mod enqueue;
mod extend;
mod fixture;
mod gate;
mod group;
mod group_limit;
mod limit;
mod lock;
mod order;
mod queue;
mod read;
mod replay;
mod reserve;
mod retention;
mod settle;
mod take;
mod take_back;
mod time;
mod unique;
mod validation;

#[cfg(feature = "redis")]
#[path = "../support/redis.rs"]
mod server;

macro_rules! conformance {
    ($($(#[$attr:meta])* $store:ident),+ => $cases:tt) => {
        $( $(#[$attr])* mod $store { conformance!(@cases $store $cases); } )+
    };
    (@cases $store:ident { $($area:ident: $($case:ident),+;)+ }) => {
        $( mod $area { $(
            #[tokio::test]
            async fn $case() {
                crate::$area::$case(crate::fixture::$store().await).await;
            }
        )+ } )+
    };
}

conformance!(
    memory,
    #[cfg(feature = "sqlite")] sqlite,
    #[cfg(feature = "redis")] redis,
    #[cfg(feature = "redis")] redis_cluster => {
    enqueue:
        a_job_comes_back_as_it_was_handed_over,
        a_new_job_has_the_defaults_of_the_contract,
        a_queues_defaults_fill_in_what_the_call_left_open,
        jobs_of_one_call_see_each_other,
        a_key_is_held_within_its_call,
        an_id_enqueued_twice_is_a_duplicate,
        an_id_that_has_a_record_is_known_in_every_queue,
        the_id_is_looked_at_before_the_key,
        the_key_is_looked_at_before_the_cap,
        earlier_than_now_means_due_now,
        a_delay_counts_from_the_stores_clock,
        a_job_may_be_due_at_the_end_of_time,
        an_empty_enqueue_is_answered;
    cap:
        max_jobs_counts_waiting_and_running_ones,
        an_ended_job_makes_room,
        max_bytes_counts_payloads_of_live_jobs,
        a_cap_of_zero_takes_nothing,
        acts_meet_no_cap;
    unique:
        keep_leaves_the_holder_as_it_is,
        a_key_is_compared_within_queue_group_and_concurrency_key,
        the_holder_is_found_by_all_of_its_key,
        a_key_until_done_is_held_while_waiting_and_running,
        a_key_until_done_is_freed_by_any_end,
        a_key_whose_job_is_gone_is_void,
        a_key_is_freed_when_a_crash_ends_its_job,
        a_key_until_start_is_freed_by_the_first_reservation_for_good,
        an_end_frees_no_key_of_another_job,
        a_key_until_start_stays_free_after_a_taking_back,
        a_key_until_start_is_freed_by_an_end_before_it,
        a_key_until_start_is_freed_by_a_take,
        a_window_is_held_to_its_end_to_the_millisecond,
        a_window_outlives_the_record_of_its_job,
        a_window_is_freed_by_giving_up_the_job_before_its_start,
        a_window_outlives_the_expiry_of_its_job,
        a_window_stays_when_a_job_that_ran_is_given_up,
        a_window_may_end_before_its_job,
        replace_gives_the_waiting_holder_everything_new,
        replace_keeps_what_the_holder_went_through,
        replace_may_name_the_version_it_read,
        reschedule_gives_the_waiting_holder_the_new_time_only,
        replace_and_reschedule_act_on_a_waiting_holder_only,
        a_retry_takes_a_key_until_done_again,
        a_retry_meets_the_job_that_holds_its_key_by_now,
        a_retry_meets_a_window_whose_job_is_gone,
        a_retry_takes_a_key_until_start_again_if_the_job_never_started,
        a_retry_takes_a_window_again_that_has_not_ended,
        a_retry_does_not_meet_itself,
        a_key_leads_to_its_holder_while_it_is_held;
    reserve:
        a_job_starts_at_its_time_and_never_before,
        a_due_job_brings_none_along_early,
        a_job_has_one_current_lease,
        a_reserved_job_tells_of_its_lease,
        fences_rise_with_every_reservation,
        a_fence_is_above_the_clock,
        the_lease_is_the_jobs_else_the_calls_else_the_queues,
        each_reservation_chooses_the_lease_anew,
        at_most_n_jobs_are_reserved,
        a_reserve_of_none_tells_what_is_next,
        the_next_time_is_the_earliest_due_job_or_lease,
        a_reserve_makes_no_queue,
        a_reserve_may_name_no_queue,
        an_answer_carries_up_to_a_mebibyte,
        a_job_that_does_not_fit_ends_the_call_in_all_queues,
        the_largest_job_travels_alone,
        a_reserve_looks_at_n_and_256_candidates,
        an_expired_job_is_never_started,
        a_running_job_is_not_ended_by_its_expiry,
        a_wait_returns_at_once_when_a_job_is_due,
        an_enqueue_ends_a_wait,
        what_a_reserve_left_ends_the_next_wait,
        a_turn_that_is_handed_over_ends_a_wait,
        a_place_in_a_queue_ends_a_wait,
        a_wait_ends_at_its_bound;
    order:
        jobs_come_by_priority_then_time_then_id,
        lifo_reverses_time_and_id_only,
        lifo_starts_nothing_early,
        a_change_of_order_holds_for_jobs_that_wait,
        a_later_job_of_a_higher_priority_holds_nobody_up,
        a_later_queue_gets_what_strict_ones_left,
        shares_come_first_and_the_rest_in_turn,
        a_share_of_zero_gets_only_what_is_left,
        a_bound_of_a_queue_leaves_the_rest_to_the_others,
        a_bound_of_a_queue_holds_for_its_share_and_the_rest_together,
        a_queue_named_twice_has_two_bounds,
        a_bound_of_zero_takes_back_all_the_same,
        only_the_named_queues_give_jobs,
        a_released_job_returns_to_its_place_and_a_failed_one_goes_behind,
        reprioritise_moves_a_job_to_its_new_place;
    settle:
        an_ack_ends_the_job_done,
        a_late_settle_counts_as_long_as_nothing_was_taken_back,
        a_stale_lease_changes_nothing,
        only_the_very_lease_settles,
        a_repeated_settle_answers_lease_lost,
        leases_of_one_call_end_in_order,
        an_ended_job_is_not_settled_again,
        a_retry_counts_an_attempt,
        a_retry_of_the_last_attempt_is_dead,
        one_attempt_means_never_again_after_a_failure,
        a_retry_may_name_any_instant,
        the_last_eight_failures_are_kept,
        an_error_is_cut_at_a_kibibyte,
        a_snooze_counts_no_attempt,
        the_shortest_snooze_is_100_ms,
        the_longest_snooze_ends_with_time,
        the_reason_of_a_snooze_is_kept_until_the_next_run_ended,
        any_other_verdict_ends_a_row_of_snoozes,
        the_ten_thousandth_snooze_in_a_row_is_dead,
        a_release_counts_nothing,
        a_run_may_call_its_job_off,
        a_run_may_give_its_job_up,
        a_reserve_behind_a_settle_sees_what_it_did,
        a_settle_is_refused_with_the_reserve_behind_it,
        an_empty_settle_is_answered;
    extend:
        an_extension_lasts_a_whole_lease_from_now,
        each_lease_is_extended_by_its_own_length,
        a_lease_past_its_time_is_extended_while_it_is_current,
        a_stale_lease_is_not_extended,
        each_lease_of_a_heartbeat_is_answered_in_its_place,
        a_heartbeat_hears_of_a_cancel_and_extends,
        a_heartbeat_changes_only_the_end_of_the_lease;
    take_back:
        a_lease_is_taken_back_at_its_time,
        a_job_taken_back_keeps_its_time_and_counts_a_crash,
        a_job_taken_back_may_start_again_in_the_same_call,
        the_second_crash_in_a_row_parts_a_job_from_its_bystanders,
        the_pause_after_a_crash_follows_the_lease_in_force,
        the_third_crash_in_a_row_is_dead,
        the_poison_limit_is_checked_before_the_attempts,
        a_crash_of_the_last_attempt_is_dead,
        one_attempt_means_never_again_after_a_crash,
        any_settle_ends_a_row_of_crashes,
        a_row_of_snoozes_outlives_a_crash,
        one_call_takes_back_32_leases,
        leases_left_past_their_time_are_more,
        leases_are_taken_back_oldest_first,
        leases_are_taken_back_in_the_named_queues_only,
        leases_of_a_paused_queue_are_taken_back,
        a_job_on_its_last_chance_is_reserved_alone,
        a_job_on_its_last_chance_waits_behind_others,
        only_reserve_and_take_take_back,
        a_job_taken_back_past_its_expiry_does_not_start_again,
        a_job_to_be_cancelled_is_cancelled_when_taken_back;
    time:
        the_store_goes_by_its_own_clock,
        nothing_is_taken_back_for_a_heartbeat_after_a_jump,
        twenty_seconds_are_no_jump,
        a_jump_makes_jobs_due_and_lets_holders_extend,
        leases_of_any_queue_make_a_jump,
        a_silence_without_leases_is_no_jump,
        each_turn_of_a_worker_leaves_its_time,
        each_turn_of_a_worker_looks_for_a_jump,
        other_calls_leave_no_time,
        a_step_back_makes_jobs_late,
        fences_rise_when_the_clock_goes_back,
        a_take_lowers_no_fence,
        coming_back_from_a_step_back_is_a_jump,
        a_pause_that_a_step_back_would_lengthen_is_void,
        a_void_pause_stays_void,
        a_void_pause_is_not_waited_for,
        a_small_step_forth_takes_leases_back_early,
        a_turn_of_the_clock_ends_a_wait;
    take:
        a_taken_job_is_done_at_once,
        only_jobs_that_are_old_enough_are_taken,
        jobs_are_taken_in_order,
        a_take_carries_up_to_a_mebibyte,
        a_take_takes_back_first,
        an_expired_job_is_not_taken,
        a_taken_job_is_kept_as_done_jobs_are,
        a_taken_job_may_be_retried;
    cancel:
        a_waiting_job_is_cancelled_at_once,
        the_reason_of_a_cancel_is_kept,
        a_retrying_job_is_cancelled_at_once,
        a_running_job_is_asked_to_stop,
        an_ack_wins_over_a_requested_cancel,
        any_other_end_obeys_a_requested_cancel,
        a_crash_obeys_a_requested_cancel,
        of_cancel_and_reserve_one_wins,
        of_cancel_and_settle_one_wins,
        of_cancel_and_reschedule_one_wins,
        a_retry_forgets_the_cancel;
    act:
        an_action_by_filter_meets_each_job_once,
        a_job_is_rescheduled,
        a_job_is_rescheduled_by_a_time,
        a_job_is_run_now,
        a_payload_is_edited,
        every_change_by_a_caller_raises_the_version,
        changes_act_on_waiting_jobs_only,
        a_job_may_be_rescheduled_past_its_expiry,
        all_but_running_jobs_are_deleted,
        targets_are_acted_on_in_order,
        a_job_that_moved_on_is_left_alone,
        a_job_is_changed_by_who_knows_its_version,
        acts_reach_jobs_that_reads_hide,
        a_retry_starts_the_counting_anew,
        a_retry_forgives_crashes_and_snoozes,
        only_ended_jobs_are_retried,
        only_an_operator_changes_an_ended_job,
        what_is_not_kept_can_not_be_retried;
    queue:
        a_queue_exists_from_its_first_job_on,
        a_queue_exists_from_its_first_pause_or_settings_on,
        settings_are_replaced_as_a_whole,
        settings_leave_a_pause_alone,
        a_queue_is_pinned_and_spread_again,
        a_paused_queue_gives_no_jobs,
        a_pause_holds_back_starts_only,
        a_paused_queue_leaves_its_share_to_the_others,
        a_purge_deletes_waiting_jobs_in_their_order,
        a_purged_job_frees_its_key_and_is_remembered,
        queues_are_listed_by_name,
        a_thousand_queues_are_listed_at_once,
        a_queue_tells_its_oldest_due_job,
        settings_names_and_bounds_are_checked;
    retention:
        a_job_past_its_age_is_hidden_then_removed,
        an_enqueue_meets_a_job_that_reads_hide,
        dead_jobs_are_kept_for_ninety_days,
        a_change_of_retention_holds_for_ended_jobs,
        the_oldest_ends_go_first_by_number,
        the_oldest_ends_go_first_by_bytes,
        each_state_is_kept_for_itself,
        a_zero_in_any_bound_keeps_nothing,
        a_bound_of_no_bytes_keeps_no_empty_payload,
        every_end_removes_where_nothing_is_kept,
        a_sweep_ends_expired_jobs,
        the_oldest_expiry_comes_first,
        jobs_of_a_paused_queue_expire,
        a_sweep_is_bounded_and_goes_on,
        a_sweep_goes_by_queue_and_state,
        a_hundred_items_ride_on_a_reserve_and_a_take,
        a_reserve_removes_a_done_job_past_its_age,
        a_reserve_removes_a_cancelled_job_past_its_age,
        a_reserve_ends_what_is_past_its_expiry,
        a_hundred_items_and_its_own_length_ride_on_a_settle,
        a_derived_id_is_remembered_for_a_day,
        a_derived_id_is_remembered_from_its_ack_on,
        a_derived_id_is_remembered_behind_a_sweep,
        the_memory_of_an_id_counts_from_the_end_of_its_job,
        an_id_is_remembered_in_its_queue_only,
        a_made_id_is_not_remembered,
        an_id_that_comes_back_has_higher_fences,
        a_deleted_id_comes_back_with_higher_fences,
        a_sweep_forgets_ids_past_their_day,
        a_sweep_forgets_windows_past_their_time,
        a_sweep_forgets_calls_after_an_hour,
        a_sweep_of_few_forgets_calls_in_order;
    replay:
        a_repeated_enqueue_has_its_effect_once,
        a_repeated_replace_changes_nothing,
        a_lower_number_is_a_repetition,
        a_repetition_tells_where_the_job_stands_by_now,
        a_repetition_leads_to_the_holder_of_the_key,
        full_is_repeated_at_its_place,
        full_of_the_last_call_is_not_that_of_an_earlier_one,
        a_call_that_was_all_full_may_be_made_again,
        a_refused_call_does_not_advance_the_number,
        a_repetition_is_not_checked_again,
        instances_and_verbs_are_numbered_apart,
        a_repeated_reserve_answers_the_same_jobs,
        a_repeated_reserve_answers_current_leases_as_they_are,
        a_repeated_reserve_answers_no_job_of_another_lease,
        a_repeated_reserve_takes_nothing_back,
        a_repeated_reserve_leaves_no_time,
        a_reserve_with_a_lower_number_answers_no_jobs,
        a_repeated_empty_reserve_stays_empty,
        a_refused_reserve_does_not_advance_the_number,
        a_settle_with_a_reserve_is_repeated_as_a_whole,
        an_instance_that_calls_again_is_remembered,
        an_idle_instance_is_forgotten;
    read:
        an_unknown_job_is_not_found,
        all_jobs_are_listed,
        a_list_finds_what_its_filter_says,
        pages_are_bounded_and_complete,
        a_page_says_what_there_is,
        the_limit_of_a_page_is_checked,
        a_listing_goes_on_from_pages_only,
        a_listed_job_is_the_job_itself,
        counters_are_exact,
        an_unknown_queue_counts_nothing,
        counters_follow_a_job,
        due_jobs_are_counted_up_to_a_hundred_thousand,
        due_jobs_of_a_paused_queue_are_counted,
        an_expired_job_waits_until_it_is_ended,
        a_histogram_counts_waiting_jobs_by_due_time,
        a_histogram_has_whole_milliseconds,
        durability_is_stated;
    concurrency:
        jobs_of_a_key_run_one_after_another,
        as_many_jobs_of_a_key_run_as_may,
        a_concurrency_key_is_compared_within_queue_and_group,
        what_is_blocked_leaves_the_way,
        turns_are_in_the_order_of_the_queue,
        turns_of_a_lifo_queue_begin_with_the_last,
        every_end_of_a_run_hands_its_turn_over,
        a_lease_taken_back_hands_its_turn_over,
        a_turn_ends_once,
        a_turn_goes_on_in_the_step_that_ends_it,
        a_turn_that_is_not_taken_goes_to_the_next,
        a_turn_of_a_job_that_expired_goes_to_the_next,
        a_job_that_is_parked_looks_for_the_first,
        a_blocked_job_is_a_waiting_one,
        a_blocked_job_can_be_replaced,
        limits_of_one_key_may_differ,
        a_blocked_job_expires_and_is_purged,
        no_id_and_no_key_is_missed,
        a_take_obeys_concurrency_keys,
        a_blocked_job_is_shown,
        an_audit_finds_nothing_wrong_with_turns;
    gate:
        a_queue_runs_as_many_jobs_as_may,
        a_limit_is_that_of_its_queue,
        a_rate_starts_jobs_evenly,
        a_burst_starts_at_once,
        only_what_starts_spends_of_a_rate,
        a_rate_goes_on_over_other_settings,
        a_rate_follows_the_clock,
        limits_are_live,
        a_take_obeys_limits,
        a_run_closes_the_gate_of_its_queue,
        a_gate_is_closed_for_a_day_at_most,
        a_lost_lease_closes_no_gate,
        a_job_behind_a_limit_is_shown_as_blocked,
        limits_of_queues_are_checked;
    group:
        equal_groups_take_turns,
        groups_are_served_by_their_weights,
        a_weight_is_that_of_the_group_else_of_all_groups,
        no_group_gets_more_than_its_share_and_one,
        a_group_that_comes_is_served_soon,
        who_was_away_has_saved_nothing_up,
        who_comes_and_goes_gains_nothing,
        newcomers_starve_nobody,
        jobs_without_a_group_are_a_group,
        a_group_is_one_of_its_queue,
        a_hundred_groups_become_due_at_once,
        more_groups_than_one_call_lets_in,
        weights_are_live,
        a_group_has_the_order_of_its_queue,
        priority_does_not_cross_groups,
        a_released_job_returns_to_its_group,
        groups_of_a_paused_queue_give_no_jobs,
        groups_take_turns_at_a_full_queue,
        groups_take_turns_at_a_queues_rate,
        expired_heads_cost_no_turn,
        candidates_of_groups_are_bounded,
        a_group_leaves_with_its_last_due_job,
        a_group_comes_when_its_first_job_is_due,
        a_key_inside_a_group_is_handed_over,
        parked_heads_cost_no_turn,
        groups_take_turns_in_takes,
        only_jobs_of_groups_that_are_old_enough_are_taken,
        jobs_of_groups_are_counted_and_listed,
        a_purge_deletes_jobs_of_all_groups,
        acts_move_jobs_inside_their_group,
        a_retried_job_waits_in_its_group,
        a_job_of_a_group_can_be_replaced,
        an_audit_finds_nothing_wrong_with_groups,
        a_step_back_loses_no_group;
    group_limit:
        a_group_runs_as_many_jobs_as_may,
        a_limit_is_that_of_the_group_else_of_all_groups,
        every_end_of_a_run_gives_its_place_back,
        a_lease_taken_back_gives_its_place_back,
        a_place_is_given_back_once,
        a_place_is_free_in_the_step_that_ends_a_run,
        only_runs_have_places,
        a_group_starts_jobs_by_its_rate,
        groups_have_rates_and_bursts_of_their_own,
        only_what_starts_spends_of_a_groups_rate,
        a_groups_rate_goes_on,
        a_groups_rate_follows_the_clock,
        a_run_closes_its_group_alone,
        a_run_without_a_group_closes_its_queue,
        a_group_is_closed_for_a_day_at_most,
        a_lost_lease_closes_no_group,
        limits_of_groups_are_live,
        a_group_that_a_setting_opens_is_due,
        limits_of_groups_are_told,
        limits_of_groups_are_checked,
        a_job_behind_its_group_is_shown_as_blocked,
        a_job_of_a_closed_group_is_shown_as_blocked,
        a_take_obeys_limits_of_groups,
        a_turn_waits_for_a_place_of_its_group,
        a_place_in_a_group_ends_a_wait,
        a_limit_that_is_raised_ends_a_wait;
    doc:
        a_document_is_as_it_was_put,
        a_document_is_changed_by_who_knows_its_version,
        versions_of_documents_rise,
        a_change_of_a_document_may_be_repeated,
        documents_are_listed_by_their_keys,
        a_page_of_documents_has_up_to_a_mebibyte,
        documents_have_limits,
        a_store_has_up_to_a_hundred_thousand_documents;
    limit:
        a_log_lets_so_many_pass_in_any_window,
        calls_of_one_millisecond_are_distinct,
        a_call_may_cost_more_than_one,
        refused_calls_count_if_asked_for,
        keys_are_counted_apart,
        a_long_log_is_exact,
        a_rate_lets_a_burst_pass_and_then_one_each_step,
        a_rate_is_exact_at_its_limits,
        a_limiter_follows_a_clock_that_goes_back,
        limiters_have_limits;
    lock:
        a_lock_has_one_owner,
        an_acquire_may_be_repeated,
        only_the_owner_extends_and_releases,
        fences_of_locks_rise,
        an_operator_may_release_a_lock,
        locks_are_listed_by_their_ends,
        locks_have_limits,
        a_release_wakes_one_that_waits,
        the_end_of_a_lease_wakes_one_that_waits;
    board:
        members_stand_by_their_scores,
        a_member_is_told_with_its_neighbours,
        a_board_that_is_past_leaves_nothing_behind,
        a_window_merges_its_buckets_and_drops_cold_ones,
        a_sum_of_nothing_is_not_on_a_window,
        a_large_bucket_is_dropped_in_slices,
        the_lowest_leave_a_full_board,
        a_board_follows_a_clock_that_goes_back,
        scores_have_bounds,
        boards_have_limits;
    audit:
        a_store_that_is_well_has_no_findings,
        a_repair_without_findings_changes_nothing,
        an_audit_goes_in_slices;
    validation:
        one_bad_job_refuses_its_whole_call,
        names_are_checked,
        options_are_checked,
        a_job_expires_after_it_is_due,
        a_payload_has_up_to_a_mebibyte,
        payloads_of_one_call_have_up_to_a_mebibyte,
        a_batch_has_up_to_a_thousand_items,
        a_reserve_is_checked,
        an_edit_is_refused_as_a_whole,
        a_reschedule_is_checked,
        a_histogram_is_checked;
});
