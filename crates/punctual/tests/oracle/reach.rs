//! What the histories reach of the contract, and what they do not, with the reason. Every verb, operation, option and filter that the
//! sources know is in one list or the other: what is reached comes up often enough, and what is not is named below.

use std::{
    collections::BTreeSet,
    fmt::{self, Debug, Write},
};

use punctual::{
    JobOptions, NewJob, Unique,
    reference::FIELDS,
    store::{QueueOp, QueueSettings, ToolOp},
};

use crate::{op::Op, rude::Tally};

/// What is reached comes up so many times in 300 histories at least.
const REACHED_MIN: u32 = 20;

/// What the histories do not reach, and why.
const NOT_REACHED: [(&str, &str); 10] = [
    ("Store::url", "each store has its own"),
    ("Store::durability", "each store has its own"),
    ("Store::identity", "each store has its own: tests/conformance/identity.rs"),
    (
        "Store::shard",
        "the model has one; several shards, their change and pinned queues are in tests/redis/shards.rs",
    ),
    ("Store::as_any", "each store has its own"),
    (
        "Store::enqueue_each",
        "answers as enqueue does but where a shard is away: tests/redis/shards.rs, tests/topology",
    ),
    ("Store::call", "each typed method makes one"),
    (
        "Store::wait",
        "waits by the clock on the wall: conformance, tests/redis/notification.rs, tests/sqlite/wait.rs",
    ),
    (
        "NewJob::idempotency_key",
        "stores look at the id only; over HTTP: punctual-server's tests/api/rights.rs",
    ),
    ("Store::doctor", "each store has its own checks: tests/redis/doctor.rs, tests/sqlite"),
];

/// Where the names stand: of a trait's methods, of the variants of an enum, of the fields of a struct.
const SOURCES: [(&str, &str, &str); 13] = [
    ("Store", "pub trait Store", include_str!("../../src/store.rs")),
    ("QueueOp", "pub enum QueueOp", include_str!("../../src/store/queue.rs")),
    ("Action", "pub enum Action", include_str!("../../src/store/act.rs")),
    ("Verdict", "pub enum Verdict", include_str!("../../src/core/verdict.rs")),
    ("DocOp", "pub enum DocOp", include_str!("../../src/store/doc.rs")),
    ("Precondition", "pub enum Precondition", include_str!("../../src/store/doc.rs")),
    ("LimitRule", "pub enum LimitRule", include_str!("../../src/store/toolkit/limit.rs")),
    ("LockOp", "pub enum LockOp", include_str!("../../src/store/toolkit/lock.rs")),
    ("BoardAct", "pub enum BoardAct", include_str!("../../src/store/toolkit/board.rs")),
    ("QueueSettings", "pub struct QueueSettings", include_str!("../../src/store/settings.rs")),
    ("NewJob", "pub struct NewJob", include_str!("../../src/core/job.rs")),
    ("JobOptions", "pub struct JobOptions", include_str!("../../src/core/job.rs")),
    ("Unique", "pub struct Unique", include_str!("../../src/core/job.rs")),
];

/// The names of an item of a source: what its lines begin with.
fn names(of: &str, item: &str, source: &str) -> Vec<String> {
    let body = source.split_once(&format!("{item} ")).or_else(|| source.split_once(item));
    let (body, _) =
        body.and_then(|(_, rest)| rest.split_once("\n}\n")).unwrap_or_else(|| panic!("{item} is not there"));
    let name = |line: &str| -> Option<String> {
        let rest = line.strip_prefix("    ")?;
        let rest = rest.strip_prefix("fn ").or_else(|| rest.strip_prefix("pub ")).unwrap_or(rest);
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
        (!name.is_empty()).then(|| format!("{of}::{name}"))
    };
    let names: BTreeSet<String> = body.lines().filter_map(name).collect();
    names.into_iter().collect()
}

/// Every name of the sources is reached, or said not to be.
#[track_caller]
pub(crate) fn check(tally: &Tally) {
    let mut wrong = Vec::new();
    let mut known = BTreeSet::new();
    let of_sources = SOURCES.map(|(of, item, source)| (of, names(of, item, source)));
    let of_filters = FIELDS.iter().map(|field| format!("filter::{}", field.name)).collect();
    for (of, names) in of_sources.into_iter().chain([("filter", of_filters)]) {
        assert!(1 < names.len(), "{of}: {names:?}");
        for name in names {
            let is_named = NOT_REACHED.iter().any(|(not, _)| *not == name);
            match tally.asked(&name) {
                0 if is_named => {}
                n if is_named => wrong.push(format!("{name} is reached {n} times: take it off the list")),
                n if n < REACHED_MIN => {
                    wrong.push(format!("{name} is reached {n} times only: reach it, or say why not"));
                }
                _ => {}
            }
            known.insert(name);
        }
    }
    let gone = NOT_REACHED.iter().filter(|(not, _)| !known.contains(*not));
    wrong.extend(gone.map(|(not, _)| format!("{not} is in no source")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a step asks for.
pub(crate) fn asked(op: &Op, mut count: impl FnMut(String)) {
    let mut verb = |name: &str| count(format!("Store::{name}"));
    match op {
        Op::Enqueue(..) => verb("enqueue"),
        Op::Reserve(_) => verb("reserve"),
        Op::Extend(_) => verb("extend"),
        Op::Settle(..) => verb("settle"),
        Op::Take(_) => verb("take"),
        Op::Act(..) => verb("act"),
        Op::Queue(..) => verb("queue"),
        Op::Doc(_) => verb("doc"),
        Op::Tool(_) => verb("tool"),
        Op::Sweep(_) => verb("sweep"),
        Op::Look(_) => {
            ["now", "list", "count", "upcoming", "queues", "get", "holder", "audit"]
                .into_iter()
                .for_each(verb);
        }
        Op::Clock(_) | Op::Reopen => {}
    }
    match op {
        Op::Enqueue(_, jobs) => jobs.iter().take(20).for_each(|job| asked_of_job(job, &mut count)),
        Op::Settle(ends, _) => ends.iter().for_each(|(_, verdict)| count(variant("Verdict", verdict))),
        Op::Act(_, action) => count(variant("Action", action)),
        Op::Queue(_, op) => {
            count(variant("QueueOp", op));
            match op {
                QueueOp::Set(settings) => asked_of_settings(settings, &mut count),
                QueueOp::Replace(replace) => asked_of_settings(&replace.new, &mut count),
                _ => {}
            }
        }
        Op::Doc(op) => {
            count(variant("DocOp", op));
            if let punctual::store::DocOp::Put { precondition, .. } = op {
                count(variant("Precondition", precondition));
            }
        }
        Op::Tool(ToolOp::Limit(op)) => count(variant("LimitRule", &op.rule)),
        Op::Tool(ToolOp::Lock(op)) => count(variant("LockOp", op)),
        Op::Tool(ToolOp::Board(op)) => count(variant("BoardAct", &op.act)),
        Op::Look(look) => {
            for term in look.filters.into_iter().flat_map(|text| text.split(' ')) {
                let word = term.trim_start_matches('-').split([':', '.']).next().unwrap_or_default();
                count(format!("filter::{word}"));
            }
        }
        _ => {}
    }
}

/// A field is asked for where it is not as it would be anyway.
fn asked_of_job(job: &NewJob, count: &mut impl FnMut(String)) {
    let usual = NewJob::new(job.id, "k", "a", job.payload.clone());
    let NewJob {
        id: _,
        // Stores look at the id only.
        idempotency_key: _,
        kind,
        queue,
        payload,
        run_at,
        options,
        group,
        concurrency,
        unique,
        expires_at,
        tags,
        headers,
    } = job;
    for (field, is_asked) in [
        ("id", true),
        ("kind", *kind != usual.kind),
        ("queue", *queue != usual.queue),
        ("payload", !payload.bytes.is_empty()),
        ("run_at", *run_at != usual.run_at),
        ("options", *options != usual.options),
        ("group", group.is_some()),
        ("concurrency", concurrency.is_some()),
        ("unique", unique.is_some()),
        ("expires_at", expires_at.is_some()),
        ("tags", !tags.is_empty()),
        ("headers", !headers.is_empty()),
    ] {
        (0..u32::from(is_asked)).for_each(|_| count(format!("NewJob::{field}")));
    }
    asked_of_options(options, count);
    if let Some(Unique { key, scope, on_conflict, version, across_kinds }) = unique {
        let usual = Unique::key(key);
        for (field, is_asked) in [
            ("key", true),
            ("scope", *scope != usual.scope),
            ("on_conflict", *on_conflict != usual.on_conflict),
            ("version", version.is_some()),
            ("across_kinds", *across_kinds),
        ] {
            (0..u32::from(is_asked)).for_each(|_| count(format!("Unique::{field}")));
        }
    }
}

fn asked_of_options(options: &JobOptions, count: &mut impl FnMut(String)) {
    let JobOptions { priority, max_attempts, backoff, timeout, lease } = options;
    for (field, is_asked) in [
        ("priority", priority.is_some()),
        ("max_attempts", max_attempts.is_some()),
        ("backoff", backoff.is_some()),
        ("timeout", timeout.is_some()),
        ("lease", lease.is_some()),
    ] {
        (0..u32::from(is_asked)).for_each(|_| count(format!("JobOptions::{field}")));
    }
}

fn asked_of_settings(settings: &QueueSettings, count: &mut impl FnMut(String)) {
    let usual = QueueSettings::default();
    let QueueSettings {
        paused,
        order,
        placement,
        max_jobs,
        max_bytes,
        concurrency,
        rate,
        group,
        groups,
        done,
        dead,
        cancelled,
        defaults,
    } = settings;
    for (field, is_asked) in [
        ("paused", paused.is_some()),
        ("order", *order != usual.order),
        ("placement", *placement != usual.placement),
        ("max_jobs", max_jobs.is_some()),
        ("max_bytes", max_bytes.is_some()),
        ("concurrency", concurrency.is_some()),
        ("rate", rate.is_some()),
        ("group", *group != usual.group),
        ("groups", !groups.is_empty()),
        ("done", *done != usual.done),
        ("dead", *dead != usual.dead),
        ("cancelled", *cancelled != usual.cancelled),
        ("defaults", *defaults != usual.defaults),
    ] {
        (0..u32::from(is_asked)).for_each(|_| count(format!("QueueSettings::{field}")));
    }
}

/// The name of a variant: how it begins when it is printed.
fn variant(of: &str, value: &impl Debug) -> String {
    /// Takes a name, and breaks off behind it: a payload may be long.
    struct Name(String);
    impl Write for Name {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            if self.0.is_empty() {
                self.0.push_str(text);
                return Ok(());
            }
            Err(fmt::Error)
        }
    }
    let mut name = Name(String::new());
    let _ = write!(name, "{value:?}");
    format!("{of}::{}", name.0)
}
