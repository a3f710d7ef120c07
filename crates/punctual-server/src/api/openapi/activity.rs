//! The activity log.

use super::shape::{Schemas, id, instant, list, open, or_null, reference, text, whole, word};
use crate::activity::Via;

pub(super) fn schemas() -> Schemas {
    let entry = open(
        "A change that a person or a program ordered through a server.",
        [
            ("at_ms", instant("When.")),
            ("by", text("The name of the caller.")),
            ("token", or_null(text("The id of its token."))),
            ("via", word(&Via::ALL, "By which way the order came. operation: a server ended an operation.")),
            (
                "action",
                text(
                    "What was done to jobs: cancel, reschedule, run_now, reprioritise, edit, retry or delete; to a queue: pause, \
                    resume, settings or purge; to a document: put or remove; to the store: repair; to an operation: order, stop, \
                    and how it ended: done, cancelled or failed.",
                ),
            ),
            ("times", whole("How many changes of this kind the entry stands for.")),
            ("done", whole("Jobs on which it was done.")),
            ("requested", whole("Running jobs whose cancel is requested.")),
            ("skipped", whole("Jobs that were left alone.")),
            ("jobs", list(&id("A job."), "The first of the jobs, five at most.")),
            ("queue", or_null(text("The queue."))),
            (
                "document",
                or_null(text(
                    "The key of the document: schedule/NAME for a schedule, topic/NAME for a topic.",
                )),
            ),
            ("operation", or_null(text("The id of the operation."))),
            ("operation_action", or_null(text("The action of the operation."))),
            ("planned", or_null(whole("The number of jobs that were counted for the operation."))),
            (
                "filter",
                or_null(text(
                    "The filter of the operation; null if it looks into payloads, which are hidden from the token.",
                )),
            ),
            ("reason", or_null(text("Why."))),
            (
                "error",
                or_null(text(
                    "unknown_outcome: the answer of the store was lost. Of an operation: why it failed.",
                )),
            ),
        ],
    );
    let page = [
        ("entries", list(&reference("Activity"), "The entries, the newest first.")),
        ("next", or_null(text("The cursor of the next page."))),
    ];
    vec![("Activity", entry), ("ActivityAnswer", open("A page of the activity log.", page))]
}
