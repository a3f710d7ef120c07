//! Seeds of the simulation: all rules hold, each seed does the same twice, and planted bugs are found.

use punctual_sim::{
    Bug, Plan, run,
    seeds::{How, kept, many, until_found},
    shrink::shrink,
    story,
};

/// How many seeds run here; `punctual-sim` runs more.
const SEEDS: u64 = 40;

#[test]
fn every_rule_holds_and_each_seed_does_the_same_twice() {
    let how = How { within: None, threads: 2, twice: true, bug: None };
    let summary = many(kept().into_iter().chain(0..SEEDS), how);
    assert_eq!(summary.failures.len(), 0, "{:?}", summary.failures);
    assert!(SEEDS < summary.lives && 0 < summary.kills, "{summary:?}");
}

/// A schedule that its worker set late, after an outage, was removed before its first tick. Seeds that are kept meet no outages.
#[test]
fn a_schedule_that_an_outage_delays_has_ticked_before_it_is_removed() {
    assert_eq!(run(&Plan::of(51_278), None).broken(), None);
}

#[test]
fn planted_bugs_are_found_by_their_rules() {
    for (bug, rule) in [
        (Bug::EnqueueForgotten, "D1"),
        (Bug::AckForgotten, "D4"),
        (Bug::Early, "T1"),
        (Bug::NotificationsLost, "D8"),
        (Bug::ExpiryIgnored, "T3"),
        (Bug::SnoozeAtOnce, "T1"),
        (Bug::RescheduleForgotten, "C2"),
        (Bug::SubscriptionForgotten, "topic"),
    ] {
        let (_, found) =
            until_found(Some(bug), 0, 50, 2).unwrap_or_else(|| panic!("{} is not found", bug.name()));
        assert_eq!(found, rule, "{}", bug.name());
    }
}

#[test]
fn a_failing_seed_shrinks_to_a_short_story_that_is_told_the_same_twice() {
    let bug = Some(Bug::EnqueueForgotten);
    let (plan, rule) = (0..50)
        .map(Plan::of)
        .find_map(|plan| run(&plan, bug).broken().map(|rule| (plan, rule)))
        .expect("the bug is found");
    let small = shrink(&plan, rule, bug);
    assert!(small.jobs.len() < plan.jobs.len() && small.jobs.len() <= 12, "{} jobs", small.jobs.len());
    let told = || story::tell(&small, &run(&small, bug));
    let first = told();
    assert!(first.contains("inserted") && first.contains(rule), "{first}");
    assert_eq!(first, told());
}
