//! The message after a change. The address after a redirect has only counts and an id, so that nobody can put words of
//! their own into this page.

use super::{
    fields::Fields,
    links::Links,
    text::{count, counted},
};
use crate::operations::Outcomes;

/// The fields of an address that say what became of jobs.
pub(super) fn pairs(of: &Outcomes, did: &'static str) -> Vec<(&'static str, String)> {
    let Outcomes { done, requested, gone, moved, unfit, taken, elsewhere, other } = *of;
    let counts = [
        ("done", done),
        ("requested", requested),
        ("gone", gone),
        ("moved", moved),
        ("unfit", unfit),
        ("taken", taken),
        ("elsewhere", elsewhere),
    ];
    let counts = counts.into_iter().filter(|(_, n)| 0 < *n).map(|(name, n)| (name, n.to_string()));
    let other = other.map(|id| ("other", id.to_string()));
    [("did", did.to_owned())].into_iter().chain(counts).chain(other).collect()
}

fn read(fields: &Fields) -> Outcomes {
    let n = |name| fields.number(name);
    Outcomes {
        done: n("done"),
        requested: n("requested"),
        gone: n("gone"),
        moved: n("moved"),
        unfit: n("unfit"),
        taken: n("taken"),
        elsewhere: n("elsewhere"),
        other: fields.get("other").parse().ok(),
    }
}

/// The message on the page after a change.
#[derive(Debug)]
pub(super) struct Flash {
    /// Whether all went well.
    pub(super) is_good: bool,
    pub(super) lines: Vec<String>,
    /// A job to look at: its address and its short id.
    pub(super) other: Option<(String, String)>,
}

impl Flash {
    /// Reads the message from the query of an address.
    pub(super) fn of(fields: &Fields, links: &Links) -> Option<Self> {
        let outcomes = read(fields);
        let n = outcomes.done;
        let lines = match fields.get("did") {
            "none" => vec!["No job was selected. Select jobs in the first column.".to_owned()],
            "pause" => vec!["The queue is paused. Jobs that run go on; no further job starts.".to_owned()],
            "resume" => vec!["The queue is resumed.".to_owned()],
            "edit" => vec!["The payload is changed. The job has a new version.".to_owned()],
            "copy" => vec!["The copy is enqueued. This is it.".to_owned()],
            "copy-without-key" => {
                vec![
                    "The copy is enqueued without its unique key, which another job holds. This is it."
                        .to_owned(),
                ]
            }
            "full" => vec!["Nothing was enqueued: the queue is at its cap.".to_owned()],
            "stale" => vec!["Nothing was done: the job changed after this page was loaded.".to_owned()],
            "settings" => vec!["The settings are changed.".to_owned()],
            "same-settings" => vec!["Nothing was changed: the form said what the settings are.".to_owned()],
            "pause-schedule" => {
                vec!["The schedule is paused. It enqueues nothing until it is resumed.".to_owned()]
            }
            "resume-schedule" => vec!["The schedule is resumed. It goes on with its next tick.".to_owned()],
            "fire" => vec!["Its job was enqueued once, due now.".to_owned()],
            "delete-schedule" => {
                vec!["The schedule is deleted, and its waiting tick is cancelled.".to_owned()]
            }
            "misnamed-schedule" => {
                vec!["Nothing was deleted: the name does not match the schedule.".to_owned()]
            }
            "stale-schedule" => {
                vec!["Nothing was done: the schedule changed after this page was loaded. This is how it is now.".to_owned()]
            }
            "misnamed" => vec!["Nothing was deleted: the name does not match the queue.".to_owned()],
            "worker-quiet" => {
                vec!["The worker takes no new jobs as soon as it finds the order, within 17 s.".to_owned()]
            }
            "worker-resume" => {
                vec!["The worker takes jobs again as soon as it finds the order, within 17 s.".to_owned()]
            }
            "worker-stop" => vec!["The worker stops as soon as it finds the order, within 17 s.".to_owned()],
            "worker-gone" => vec!["The worker does not run any more.".to_owned()],
            "purge" if 0 < outcomes.moved => {
                vec![format!("Deleted {}. More are waiting: purge again.", counted(n, "waiting job"))]
            }
            "purge" => vec![format!("Deleted {}.", counted(n, "waiting job"))],
            did => act_lines(past(did)?, did, &outcomes),
        };
        let is_good = match fields.get("did") {
            "pause" | "resume" | "edit" | "copy" | "settings" | "pause-schedule" | "resume-schedule"
            | "fire" | "delete-schedule" | "worker-quiet" | "worker-resume" | "worker-stop" => true,
            "purge" => outcomes.moved == 0,
            "none" | "misnamed" | "copy-without-key" | "full" | "stale" | "same-settings"
            | "misnamed-schedule" | "stale-schedule" | "worker-gone" => false,
            _ => outcomes == Outcomes { done: n, requested: outcomes.requested, ..Outcomes::default() },
        };
        let other = outcomes.other.map(|id| (links.job(id), id.short()));
        Some(Self { is_good, lines, other })
    }
}

/// What was done, as a word. `None` for a word that names no action.
fn past(did: &str) -> Option<&'static str> {
    Some(match did {
        "cancel" => "Cancelled",
        "reschedule" => "Rescheduled",
        "run-now" => "Made due now",
        "reprioritise" => "Changed the priority of",
        "retry" => "Retried",
        "delete" => "Deleted",
        _ => return None,
    })
}

fn act_lines(past: &str, did: &str, outcomes: &Outcomes) -> Vec<String> {
    let were = |n: u64, one: &str, many: &str| {
        if n == 1 { format!("1 job {one}") } else { format!("{} jobs {many}", count(n)) }
    };
    let Outcomes { done, requested, gone, moved, unfit, taken, elsewhere, .. } = *outcomes;
    let mut lines = Vec::new();
    if 0 < done || requested == 0 {
        lines.push(format!("{past}: {}.", counted(done, "job")));
    }
    if 0 < requested {
        lines.push(format!(
            "A cancel was requested for {}; workers stop at their next heartbeat.",
            counted(requested, "running job")
        ));
    }
    if 0 < moved {
        lines.push(format!(
            "{} after this page was loaded. Nothing was done to such jobs.",
            were(moved, "changed", "changed")
        ));
    }
    if 0 < unfit {
        lines.push(format!("{} {did} in the present state.", were(unfit, "does not allow", "do not allow")));
    }
    if 0 < gone {
        lines.push(format!("{} any more.", were(gone, "does not exist", "do not exist")));
    }
    if 0 < taken {
        lines.push(format!(
            "{} not be retried: another job holds the unique key now.",
            were(taken, "could", "could")
        ));
    }
    if 0 < elsewhere {
        lines.push(format!(
            "{} not be retried yet: jobs of the same group or concurrency key are in another shard. Retry after these have ended.",
            were(elsewhere, "could", "could")
        ));
    }
    lines
}
