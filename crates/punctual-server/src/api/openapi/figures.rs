//! The figures of the overview, and failures.

use serde_json::Value;

use super::shape::{Schemas, flag, id, instant, list, of, open, reference, text, whole};

fn stats() -> Value {
    let queue = open(
        "A queue.",
        [
            ("name", text("Its name.")),
            ("counts", of("Counts", "Its jobs.")),
            ("paused?", of("Pause", "The pause, if it is paused.")),
            (
                "oldest_due_at_ms?",
                instant("When the oldest due job that no concurrency key holds back became due."),
            ),
            (
                "oldest_blocked_at_ms?",
                instant("When the oldest job that its concurrency key holds back became due."),
            ),
            ("opens_at_ms?", instant("The time before which none of its jobs can start.")),
        ],
    );
    let ran = |description: &str| list(&reference("Ran"), description);
    let hour = open(
        "What workers ran in the last hour: at most 100 of each sort, most runs first.",
        [
            ("kinds", ran("Kinds.")),
            ("queues", ran("Queues.")),
            ("groups", ran("Groups, each of one queue.")),
            ("errors", ran("Errors of failed runs.")),
        ],
    );
    open(
        "The figures of a store. They can be a second old.",
        [
            ("now_ms", instant("The time of the store.")),
            ("counts", of("Counts", "The jobs of all queues.")),
            (
                "queues",
                list(&queue, "At most 100 queues: those that ran most in the last hour, then by name."),
            ),
            ("more", flag("Whether there are more queues.")),
            ("last_hour", hour),
        ],
    )
}

fn failures() -> Value {
    let group = open(
        "Jobs of one kind whose errors have the same fingerprint.",
        [
            ("kind", text("The kind.")),
            ("fingerprint", text("The first line of their errors, with … and # for what differs.")),
            ("dead", whole("Dead jobs.")),
            ("retrying", whole("Waiting jobs that failed before.")),
            ("first_at_ms", instant("The earliest of their last failures.")),
            ("last_at_ms", instant("The latest failure.")),
            ("last_job", id("The job that failed last.")),
            ("last_error", text("Its error.")),
            ("filter", text("A filter for these jobs. It can find a few others, too.")),
        ],
    );
    open(
        "Dead and retrying jobs.",
        [
            ("now_ms", instant("The time of the store.")),
            ("groups", list(&group, "At most 100 groups, those with most jobs first.")),
            ("found", whole("The number of all groups.")),
            ("jobs", whole("The failed jobs that were found.")),
            ("searched", whole("The jobs that were read, for dead and then for retrying ones.")),
            ("total", whole("The jobs in the store.")),
            (
                "complete",
                flag("Whether all failed jobs were found. Up to 2,000 of each state are searched for."),
            ),
        ],
    )
}

pub(super) fn schemas() -> Schemas {
    vec![
        ("StatsAnswer", stats()),
        (
            "Ran",
            open(
                "The number of runs of one name.",
                [
                    ("name", text("The kind, queue, group or error.")),
                    ("queue?", text("The queue of the group.")),
                    ("runs", whole("The number of runs.")),
                ],
            ),
        ),
        ("FailuresAnswer", failures()),
        (
            "WhyAnswer",
            open(
                "Why a job is not running, or how it ended.",
                [
                    ("now_ms", instant("The time of the store.")),
                    ("id", id("The job.")),
                    ("queue", text("Its queue.")),
                    ("state", of("State", "Its state.")),
                    ("reasons", list(&text("A sentence."), "The first one is the most important one.")),
                ],
            ),
        ),
    ]
}
