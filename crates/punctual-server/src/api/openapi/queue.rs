//! Queues and their settings.

use punctual::limits::{BATCH_MAX, CONCURRENCY_MAX, GROUP_WEIGHT_MAX, QUEUE_CONCURRENCY_MAX, RATE_MAX};
use serde_json::{Value, json};

use super::{
    job::max_attempts,
    shape::{
        Field, Schemas, closed, flag, instant, list, map, of, one_of, open, or_null, tagged, text, whole,
        within, word,
    },
};

/// Options of a job that a queue can have defaults for.
pub(super) fn options() -> Vec<Field> {
    vec![
        ("priority?", or_null(of("Priority", "The priority (default: normal)."))),
        ("max_attempts?", or_null(max_attempts())),
        ("backoff?", or_null(of("Backoff", "The pauses between attempts."))),
        ("timeout_ms?", or_null(whole("The longest run, 1 to 604,800,000 (default: 300,000)."))),
        ("lease_ms?", or_null(whole("The length of its leases, 1,000 to 86,400,000 (default: 15,000)."))),
    ]
}

fn settings() -> Value {
    let keep = |description| of("Keep", description);
    closed(
        "The settings of a queue.",
        [
            ("paused?", or_null(of("Pause", "The pause, if it is paused. A change of settings ignores it."))),
            ("order?", word(&["fifo", "lifo"], "The order after the priorities (default: fifo).")),
            (
                "placement?",
                word(&["spread", "pinned"], "Where its jobs are in a store with shards (default: spread)."),
            ),
            ("max_jobs?", or_null(whole("The most waiting and running jobs."))),
            ("max_bytes?", or_null(whole("The most payload bytes of waiting and running jobs."))),
            (
                "concurrency?",
                or_null(within(1, QUEUE_CONCURRENCY_MAX.into(), "The most jobs that run at once.")),
            ),
            ("rate?", or_null(of("Rate", "How often its jobs can start."))),
            ("group?", of("GroupLimits", "The limits of each group that has none of its own.")),
            (
                "groups?",
                map(&super::shape::reference("GroupLimits"), "The limits of single groups, at most 1,000."),
            ),
            ("done?", keep("Retention of done jobs.")),
            ("dead?", keep("Retention of dead jobs.")),
            ("cancelled?", keep("Retention of cancelled jobs.")),
            ("defaults?", closed("Options of jobs that neither call nor type chose.", options())),
        ],
    )
}

/// A change of some settings.
fn change() -> Value {
    let mut change = settings();
    change["description"] = json!(
        "The settings that change. null restores a default. The parts of group, groups and defaults change one by one, and \
            null removes a group from groups. All others are replaced as a whole."
    );
    let fields = change["properties"].as_object_mut().into_iter().flatten();
    for (name, schema) in fields {
        *schema = match name.as_str() {
            "groups" => map(&or_null(super::shape::reference("GroupLimits")), "Groups that change."),
            _ => or_null(schema.take()),
        };
    }
    if let Some(fields) = change["properties"].as_object_mut() {
        fields.remove("paused");
        fields.entry("groups").and_modify(|groups| *groups = or_null(groups.take()));
    }
    change
}

fn counts() -> Value {
    open(
        "The number of jobs by state.",
        [
            ("waiting", whole("Waiting jobs, including retrying ones.")),
            ("retrying", whole("Waiting jobs that were tried before.")),
            ("due", whole("Waiting jobs that are due, counted up to 100,000.")),
            ("running", whole("Running jobs.")),
            ("done", whole("Done jobs that are kept.")),
            ("dead", whole("Dead jobs.")),
            ("cancelled", whole("Cancelled jobs that are kept.")),
            ("bytes", whole("Payload bytes of waiting and running jobs.")),
            ("parts_away?", whole("Unavailable parts of the store. Their jobs are not counted.")),
        ],
    )
}

fn request() -> Value {
    let pause = [("by", text("The name of the person or program.")), ("reason", text("The reason."))];
    let replace = [
        ("seen", of("QueueSettings", "The settings as they were read.")),
        ("new", of("QueueSettings", "The new settings.")),
    ];
    let group = [("group?", or_null(text("The group (default: the queue itself).")))];
    let steps = [
        json!({"enum": ["show", "resume"]}),
        tagged("pause", closed("Pauses the queue.", pause)),
        tagged("open", closed("Ends a pause that a run requested.", group)),
        tagged("purge", within(1, BATCH_MAX as u64, "Deletes up to this many waiting jobs.")),
        tagged("set", of("QueueSettings", "Replaces all settings. Those that are left out become defaults.")),
        tagged("replace", closed("Replaces all settings if they are still those that were read.", replace)),
    ];
    closed("A step on a queue.", [("name", text("The queue.")), ("op", one_of("What to do.", steps))])
}

fn purged() -> Value {
    open(
        "What was deleted.",
        [("deleted", whole("Jobs deleted.")), ("more", flag("Whether waiting jobs are left."))],
    )
}

fn answer() -> Value {
    one_of(
        "The answer of the queue.",
        [
            json!({"const": "unknown"}),
            tagged("info", of("QueueInfo", "The queue as it is now.")),
            tagged("conflict", of("QueueInfo", "The settings are not those that were read, but these.")),
            tagged("purged", purged()),
        ],
    )
}

pub(super) fn schemas() -> Schemas {
    vec![
        ("QueueRequest", request()),
        ("QueueAnswer", answer()),
        (
            "QueueInfo",
            open(
                "A queue.",
                [
                    ("name", text("Its name.")),
                    ("settings", of("QueueSettings", "Its settings.")),
                    ("counts", of("Counts", "Its jobs.")),
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
            ),
        ),
        ("QueueSettings", settings()),
        ("ChangeQueueRequest", change()),
        (
            "PurgeQueueRequest",
            closed(
                "A purge.",
                [(
                    "limit?",
                    or_null(within(1, BATCH_MAX as u64, "The most jobs to delete (default: 1,000).")),
                )],
            ),
        ),
        ("PurgeQueueAnswer", purged()),
        ("Counts", counts()),
        (
            "Pause",
            closed(
                "A pause.",
                [
                    ("since_ms", whole("When it started.")),
                    ("by", text("The name of the person or program.")),
                    ("reason", text("The reason.")),
                ],
            ),
        ),
        (
            "PauseRequest",
            closed(
                "A pause of a queue or schedule.",
                [
                    ("by?", or_null(text("The name of the person or program (default: that of the token)."))),
                    ("reason?", or_null(text("The reason."))),
                ],
            ),
        ),
        (
            "Keep",
            closed(
                "How long ended jobs are kept. The first bound reached applies. 0 keeps nothing.",
                [
                    ("age_ms", whole("The age since the end.")),
                    ("count", whole("The number of jobs.")),
                    ("bytes", whole("The bytes of payloads and results.")),
                ],
            ),
        ),
        (
            "GroupLimits",
            closed(
                "The limits of a group.",
                [
                    ("weight?", or_null(within(1, GROUP_WEIGHT_MAX.into(), "Its share (default: 1)."))),
                    (
                        "concurrency?",
                        or_null(within(1, CONCURRENCY_MAX.into(), "The most jobs that run at once.")),
                    ),
                    ("rate?", or_null(of("Rate", "How often its jobs can start."))),
                ],
            ),
        ),
        (
            "Rate",
            closed(
                "How often jobs can start.",
                [
                    ("max", within(1, RATE_MAX.into(), "Jobs per period.")),
                    ("period_ms", whole("The period, up to 30 days.")),
                    ("burst?", within(1, RATE_MAX.into(), "Jobs at once after a pause (default: 1).")),
                ],
            ),
        ),
        (
            "QueuesRequest",
            closed(
                "A request for names of queues.",
                [("after?", or_null(text("The name after which to continue.")))],
            ),
        ),
        (
            "QueuesAnswer",
            open(
                "Names of queues.",
                [("names", list(&json!({"type": "string"}), "At most 1,000, sorted by bytes."))],
            ),
        ),
    ]
}
