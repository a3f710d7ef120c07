//! Workers.

use serde_json::json;

use super::shape::{Schemas, instant, list, of, open, or_null, reference, text, whole, word};

pub(super) fn schemas() -> Schemas {
    let names = json!({"type": "string"});
    let worker = [
        ("id", text("Its id, drawn anew each time that a worker starts.")),
        ("name", text("Its name: the worker of the jobs that it runs.")),
        ("host", text("The name of its machine.")),
        ("pid", whole("The id of its process.")),
        ("version", text("The version of punctual.")),
        ("since_ms", instant("When it started.")),
        ("seen_ms", instant("When it last registered itself. It does so every 15 s.")),
        (
            "state",
            word(
                &["working", "quiet", "stopping", "missing"],
                "Its state. A worker is missing after 60 s without a registration.",
            ),
        ),
        ("queues", list(&reference("ServedQueue"), "The queues that it serves, in its order.")),
        ("kinds", list(&names, "The kinds that it has handlers for, at most 50. * means all others.")),
        ("more_kinds", whole("How many more kinds it has handlers for.")),
        ("slots", whole("How many jobs it runs at once at most.")),
        ("busy", whole("How many jobs it ran when it last registered itself.")),
        ("forwards?", of("Forwarding", "What a forwarder did.")),
        ("order?", word(&["quiet", "resume", "stop"], "An order that it has not found yet.")),
    ];
    vec![
        ("Worker", open("A running worker.", worker)),
        (
            "ServedQueue",
            open(
                "A queue that a worker serves.",
                [
                    ("name", text("Its name.")),
                    (
                        "weight?",
                        or_null(whole("Its weight. Without one, it is served before those after it.")),
                    ),
                ],
            ),
        ),
        (
            "Forwarding",
            open(
                "What a forwarder did since it started.",
                [
                    ("to", text("The address of the receiver, without its secrets.")),
                    ("sent", whole("Messages that the receiver confirmed.")),
                    ("failed", whole("Attempts that failed.")),
                    ("error?", text("The last error, until a message is sent.")),
                ],
            ),
        ),
        (
            "WorkersAnswer",
            open(
                "A page of workers.",
                [
                    ("now_ms", instant("The time of the store.")),
                    ("workers", list(&reference("Worker"), "Workers by id, of the queues of the token.")),
                    ("next?", text("The id to continue after, if there may be more.")),
                ],
            ),
        ),
    ]
}
