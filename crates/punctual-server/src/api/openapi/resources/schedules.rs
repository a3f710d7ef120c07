//! Schedules by their address.

use serde_json::{Map, Value};

use super::{Operation, answer, change, one, plain, query, reference, stored, text};

/// Answers with a schedule, 201 if it was created.
fn set() -> Map<String, Value> {
    let mut answers = one("Schedule", &["ETag"]);
    answers.insert("201".to_owned(), answer(&reference("Schedule"), &["ETag"]));
    answers
}

pub(super) fn operations() -> Vec<Operation> {
    let schedule = || one("Schedule", &["ETag"]);
    let (path, pause, resume) = ("/schedules/{name}", "/schedules/{name}/pause", "/schedules/{name}/resume");
    vec![
        Operation {
            parameters: vec![query("after", text("The name after which to continue."))],
            ..plain(
                "/schedules",
                "get",
                "schedules",
                "Returns a page of schedules",
                one("SchedulesAnswer", &[]),
            )
        },
        plain(path, "get", "schedule", "Returns a schedule", schedule()),
        change(
            plain(path, "put", "setSchedule", "Creates or changes a schedule", set()),
            Some("SetScheduleRequest"),
        ),
        change(
            plain(
                path,
                "delete",
                "removeSchedule",
                "Removes a schedule and cancels its waiting tick",
                one("Removed", &[]),
            ),
            None,
        ),
        change(
            plain(
                pause,
                "post",
                "pauseSchedule",
                "Pauses a schedule and cancels its waiting tick",
                schedule(),
            ),
            Some("PauseRequest"),
        ),
        change(plain(resume, "post", "resumeSchedule", "Ends the pause of a schedule", schedule()), None),
        plain(
            "/schedules/{name}/fire",
            "post",
            "fireSchedule",
            "Enqueues the job of a schedule now, in addition to its ticks",
            stored(),
        ),
    ]
}
