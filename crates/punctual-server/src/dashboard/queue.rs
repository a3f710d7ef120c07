//! One queue: settings, counts, and pause, resume and purge.

use std::time::Duration;

use askama::Template;
use axum::{
    extract::{Path, Request},
    http::Uri,
    response::{Redirect, Response},
};
use futures_util::try_join;
use punctual::{
    Timestamp,
    limits::BATCH_MAX,
    store::{GroupLimits, Keep, Order, Placement, QueueInfo, QueueOp, QueueReply, Rate},
};

use super::{
    fault::Fault,
    fields::Fields,
    flash::{self, Flash},
    frame::{Frame, Here, html},
    links::Links,
    terms::exact,
    text::{Moment, backoff, count, counted, due, size, span},
    view::View,
};
use crate::{activity::Entry, gate::Right, operations::Outcomes};

/// The most calls of one purge. Each deletes up to 1,000 jobs.
const PURGE_CALLS_MAX: usize = 100;
/// The most groups with limits of their own that are shown.
const GROUPS_SHOWN: usize = 20;
/// The most characters of the name and reason of a pause.
const PAUSE_CHARS_MAX: usize = 256;

/// A pause of the queue.
struct Pause {
    by: String,
    since: Moment,
    reason: String,
}

#[derive(Template)]
#[template(path = "queue.html")]
struct Page {
    frame: Frame,
    name: String,
    link: String,
    paused: Option<Pause>,
    opens: Option<Moment>,
    oldest: Option<Moment>,
    /// How long the oldest job that is blocked by its concurrency key has been due.
    blocked: Option<Moment>,
    /// Counters: name, number, address, class.
    counters: Vec<(&'static str, String, String, &'static str)>,
    bytes: String,
    settings: Vec<(&'static str, String)>,
    groups: Vec<(String, String)>,
    more_groups: Option<String>,
    waiting: String,
    /// The name of the caller.
    by: String,
    may_operate: bool,
    may_admin: bool,
}

/// Shows one queue. Makes two calls to the store.
pub(super) async fn page(board: View, Path(name): Path<String>, uri: Uri) -> Result<Response, Fault> {
    board.check(Right::Read, Some(&name))?;
    let handle = board.client.queue(&name);
    let (info, now) = try_join!(handle.show(), board.client.store().now())?;
    let info = info.ok_or(Fault::NoQueue(name))?;
    let settings = &info.settings;
    let more = settings.groups.len().checked_sub(GROUPS_SHOWN).filter(|more| 0 < *more);
    html(&Page {
        frame: Frame::new(&board, Here::Queues, &info.name)
            .with(Flash::of(&Fields::of_query(&uri), &board.links)),
        link: board.links.queue(&info.name),
        paused: settings.paused.as_ref().map(|pause| Pause {
            by: pause.by.clone(),
            since: Moment::new(Timestamp::saturating_from_ms(pause.since_ms), now),
            reason: pause.reason.clone(),
        }),
        opens: info.opens_at.map(|at| Moment::new(at, now)),
        oldest: info.oldest_due.map(|at| Moment::age(at, now)),
        blocked: info.oldest_blocked.map(|at| Moment::age(at, now)),
        counters: counters(&info, &board.links),
        bytes: size(info.counts.bytes),
        settings: rows(&info),
        groups: settings
            .groups
            .iter()
            .take(GROUPS_SHOWN)
            .map(|(name, of)| (name.clone(), limits(of)))
            .collect(),
        more_groups: more.map(|more| count(more as u64)),
        waiting: counted(info.counts.waiting, "waiting job"),
        by: board.name().to_owned(),
        may_operate: board.may(Right::Operate, Some(&info.name)),
        may_admin: board.may(Right::Admin, None),
        name: info.name,
    })
}

/// Pauses the queue. Makes one call to the store.
pub(super) async fn pause(
    board: View,
    Path(name): Path<String>,
    request: Request,
) -> Result<Redirect, Fault> {
    board.check(Right::Operate, Some(&name))?;
    let (by, reason) = pause_note(&board, &Fields::of_form(request.into_body()).await?);
    let made = board.client.queue(&name).pause(by, reason.as_str()).await;
    board.activity.note(board.entry("pause").queue(&name).reason(&reason), &made);
    made?;
    Ok(back(&board, &name, &[("did", "pause")]))
}

/// Reads who pauses a queue or schedule (default: the caller), and why.
pub(super) fn pause_note(view: &View, fields: &Fields) -> (String, String) {
    let short = |text: &str| text.chars().take(PAUSE_CHARS_MAX).collect::<String>();
    let by = Some(fields.get("by")).filter(|by| !by.is_empty()).unwrap_or(view.name());
    (short(by), short(fields.get("reason")))
}

/// Ends the pause of the queue. Makes one call to the store.
pub(super) async fn resume(board: View, Path(name): Path<String>) -> Result<Redirect, Fault> {
    board.check(Right::Operate, Some(&name))?;
    let made = board.client.queue(&name).resume().await;
    if !matches!(made, Ok(None)) {
        board.activity.note(board.entry("resume").queue(&name), &made);
    }
    made?.ok_or_else(|| Fault::NoQueue(name.clone()))?;
    Ok(back(&board, &name, &[("did", "resume")]))
}

/// Deletes waiting jobs, if the form has the name of the queue. Makes at most 100 calls to the store.
pub(super) async fn purge(
    board: View,
    Path(name): Path<String>,
    request: Request,
) -> Result<Redirect, Fault> {
    let fields = Fields::of_form(request.into_body()).await?;
    if fields.exact("name") != Some(&name) {
        return Ok(back(&board, &name, &[("did", "misnamed")]));
    }
    let (mut sum, mut made) = (Outcomes::default(), Ok(()));
    for _ in 0..PURGE_CALLS_MAX {
        match board.client.store().queue(&name, &QueueOp::Purge(BATCH_MAX)).await {
            Ok(QueueReply::Purged { deleted, more }) => {
                (sum.done, sum.moved) = (sum.done + deleted, u64::from(more));
                if !more {
                    break;
                }
            }
            Ok(_) => return Err(Fault::NoQueue(name)),
            Err(error) => {
                made = Err(error);
                break;
            }
        }
    }
    let entry = Entry { done: sum.done, ..board.entry("purge").queue(&name) };
    if 0 < sum.done {
        // What was deleted before a failure is gone.
        board.activity.add(entry);
    } else {
        board.activity.note(entry, &made);
    }
    made?;
    let pairs = flash::pairs(&sum, "purge");
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Ok(back(&board, &name, &pairs))
}

pub(super) fn back(board: &View, name: &str, pairs: &[(&str, &str)]) -> Redirect {
    let query = board.links.query("", pairs);
    let (_, query) = query.split_once('?').unwrap_or_default();
    Redirect::to(&format!("{}?{query}", board.links.queue(name)))
}

fn counters(info: &QueueInfo, links: &Links) -> Vec<(&'static str, String, String, &'static str)> {
    let jobs = |terms: &str| links.jobs(&format!("{terms} {}", exact("queue", &info.name)));
    let counts = &info.counts;
    vec![
        ("Waiting", count(counts.waiting), jobs("state:waiting"), "scheduled"),
        ("Due", due(counts.due), jobs("state:waiting due:<0s"), "ready"),
        ("Retrying", count(counts.retrying), jobs("state:retrying"), "retrying"),
        ("Running", count(counts.running), jobs("state:running"), "running"),
        ("Done", count(counts.done), jobs("state:done"), "done"),
        ("Dead", count(counts.dead), jobs("state:dead"), "dead"),
        ("Cancelled", count(counts.cancelled), jobs("state:cancelled"), "cancelled"),
    ]
}

fn rows(info: &QueueInfo) -> Vec<(&'static str, String)> {
    let settings = &info.settings;
    let cap = |n: Option<u64>| n.map_or("none".to_owned(), count);
    let order = match settings.order {
        Order::Fifo => "oldest first",
        Order::Lifo => "newest first",
    };
    let placement = match settings.placement {
        Placement::Spread => "in all shards",
        Placement::Pinned => "in one shard",
    };
    let of_groups = limits(&settings.group);
    let defaults = &settings.defaults;
    let mut rows = vec![
        ("Concurrency", cap(settings.concurrency.map(u64::from))),
        ("Rate", settings.rate.map_or("none".to_owned(), starts)),
        ("Each group", if of_groups.is_empty() { "no limits".to_owned() } else { of_groups }),
        ("Order", order.to_owned()),
        ("Placement", placement.to_owned()),
        ("Most jobs", cap(settings.max_jobs)),
        ("Most bytes", settings.max_bytes.map_or("none".to_owned(), size)),
        ("Done jobs kept", kept(settings.done)),
        ("Dead jobs kept", kept(settings.dead)),
        ("Cancelled jobs kept", kept(settings.cancelled)),
    ];
    rows.extend(defaults.priority.map(|level| ("Default priority", level.to_string())));
    rows.extend(defaults.max_attempts.map(|n| ("Default attempts", count(n.into()))));
    rows.extend(defaults.timeout.map(|timeout| ("Default timeout", span(timeout))));
    rows.extend(defaults.lease.map(|lease| ("Default lease", span(lease))));
    rows.extend(defaults.backoff.as_ref().map(|of| ("Default backoff", backoff(of))));
    rows
}

/// `100 per 1m, burst 10`.
fn starts(rate: Rate) -> String {
    let burst = if rate.burst == 1 { String::new() } else { format!(", burst {}", count(rate.burst.into())) };
    format!("{} per {}{burst}", count(rate.max.into()), span(Duration::from_millis(rate.period_ms)))
}

fn limits(of: &GroupLimits) -> String {
    let weight = of.weight.map(|n| format!("weight {n}"));
    let concurrency = of.concurrency.map(|n| format!("concurrency {}", count(n.into())));
    let rate = of.rate.map(|rate| format!("rate {}", starts(rate)));
    weight.into_iter().chain(concurrency).chain(rate).collect::<Vec<_>>().join(", ")
}

fn kept(keep: Keep) -> String {
    if keep.keeps_nothing() {
        return "no".to_owned();
    }
    format!(
        "{}, {}, {}",
        span(Duration::from_millis(keep.age_ms)),
        counted(keep.count, "job"),
        size(keep.bytes)
    )
}
