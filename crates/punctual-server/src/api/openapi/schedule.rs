//! Schedules.

use punctual::limits::{CRON_BYTES_MAX, EVERY_MAX, EVERY_MIN, MISSED_MAX};
use serde_json::{Value, json};

use super::shape::{
    Schemas, any, closed, instant, list, of, one_of, open, reference, tagged, text, whole, within,
};

fn ticks() -> Value {
    let run_all = closed("", [("at_most", within(1, MISSED_MAX.into(), "The most missed ticks that run."))]);
    let misfire = json!({
        "description": "What happens to missed ticks (default: run_once).",
        "oneOf": [{"enum": ["skip", "run_once"]}, tagged("run_all", run_all)],
    });
    let cron = json!({
        "type": "string",
        "maxLength": CRON_BYTES_MAX,
        "description": "A cron expression: five fields, or six with seconds in front.",
    });
    let (min, max) = (EVERY_MIN.as_millis() as u64, EVERY_MAX.as_millis() as u64);
    one_of(
        "When a schedule ticks.",
        [
            closed(
                "By a cron expression.",
                [
                    ("cron", cron),
                    ("tz?", text("The time zone of the expression, as Europe/Berlin (default: UTC).")),
                    ("misfire?", misfire.clone()),
                ],
            ),
            closed(
                "At an interval, counted from 1970-01-01T00:00Z.",
                [("every_ms", within(min, max, "The interval.")), ("misfire?", misfire)],
            ),
        ],
    )
}

pub(super) fn schemas() -> Schemas {
    let ignored = |name| (name, any("Ignored, so that a schedule that was read can be sent again."));
    vec![
        ("Ticks", ticks()),
        (
            "Schedule",
            open(
                "A schedule.",
                [
                    ("name", text("Its name.")),
                    ("generation", whole("Its version. It rises with each change.")),
                    ("ticks", of("Ticks", "When it ticks.")),
                    ("job", of("ScheduledJob", "The job of each tick.")),
                    ("paused?", of("Pause", "The pause, if it is paused.")),
                    ("next_at_ms?", instant("Its next tick. It is absent while it is paused.")),
                ],
            ),
        ),
        (
            "SetScheduleRequest",
            closed(
                "A schedule. All of it is replaced, but the pause.",
                [
                    ("ticks", of("Ticks", "When it ticks.")),
                    ("job", of("ScheduledJob", "The job of each tick.")),
                    ignored("name?"),
                    ignored("generation?"),
                    ignored("paused?"),
                    ignored("next_at_ms?"),
                ],
            ),
        ),
        (
            "SchedulesAnswer",
            open(
                "A page of schedules.",
                [
                    ("schedules", list(&reference("Schedule"), "Schedules by name, at most 1,000.")),
                    (
                        "unreadable",
                        list(
                            &json!({"type": "string"}),
                            "Names of schedules that cannot be read. They can be set again or removed.",
                        ),
                    ),
                    ("next?", text("The name after which to continue. It is absent after the last page.")),
                ],
            ),
        ),
        (
            "Removed",
            open(
                "A removal.",
                [("status", json!({"const": "removed"})), ("name", text("What was removed."))],
            ),
        ),
    ]
}
