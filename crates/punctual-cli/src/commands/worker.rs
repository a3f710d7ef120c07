//! `punctual worker …`: the workers of a store.

use std::io::Write as _;

use punctual::{
    Timestamp,
    worker::{WorkerInfo, WorkerOrder, WorkerState},
};

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{Format, Table, clean, cut, grouped, json},
    times::relative,
};

/// Digits of the id of a worker.
const ID_DIGITS: usize = 16;
/// Characters of an error of a forwarder.
const ERROR_CHARS: usize = 60;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Each worker registers itself in the store at its start and every 15 s. So it follows an order within 17 s. A worker that was \
not seen for 60 s is missing; it is no longer listed after 24 h. Workers in other languages do not register themselves.

Examples:
  punctual worker ls
  punctual worker quiet web-1/4711
  punctual worker stop web-1/4711")]
pub(crate) enum Worker {
    /// List the running workers and forwarders.
    #[command(after_help = "\
Examples:
  punctual worker ls
  punctual worker ls -o wide
  punctual worker ls -o json")]
    Ls,
    /// Let a worker reserve no further jobs; its running jobs go on.
    #[command(after_help = "\
Examples:
  punctual worker quiet web-1/4711
  punctual worker quiet 5c1e9f0419f2a6b3")]
    Quiet {
        /// Name or id of the worker.
        worker: String,
    },
    /// Let a quiet worker reserve jobs again.
    #[command(after_help = "\
Examples:
  punctual worker resume web-1/4711
  punctual worker resume 5c1e9f0419f2a6b3")]
    Resume {
        /// Name or id of the worker.
        worker: String,
    },
    /// Shut a worker down as SIGTERM does: its running jobs can end within its grace period.
    #[command(after_help = "\
A supervisor such as systemd can start the process again.

Examples:
  punctual worker stop web-1/4711
  punctual worker stop 5c1e9f0419f2a6b3")]
    Stop {
        /// Name or id of the worker.
        worker: String,
    },
}

impl Worker {
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self, Self::Ls)
    }
}

pub(crate) async fn run(session: &mut Session, command: &Worker) -> Result {
    match command {
        Worker::Ls => ls(session).await,
        Worker::Quiet { worker } => order(session, worker, WorkerOrder::Quiet).await,
        Worker::Resume { worker } => order(session, worker, WorkerOrder::Resume).await,
        Worker::Stop { worker } => order(session, worker, WorkerOrder::Stop).await,
    }
}

/// Returns all workers, and the time of the store.
async fn all(session: &Session) -> Result<(Vec<WorkerInfo>, Timestamp)> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = session.client.workers(after.as_deref()).await?;
        for id in page.unreadable {
            session.say(&format!("worker {} cannot be read: a newer punctual registered it", clean(&id)));
        }
        all.extend(page.workers);
        after = page.next;
        if after.is_none() {
            return Ok((all, page.now));
        }
    }
}

async fn ls(session: &mut Session) -> Result {
    let (mut all, now) = all(session).await?;
    all.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    let out = &mut session.out;
    match session.format {
        Format::Json => json(out, &all)?,
        Format::Ndjson => all.iter().try_for_each(|worker| json(out, worker))?,
        Format::Ids => all.iter().try_for_each(|worker| writeln!(out, "{}", clean(&worker.id)))?,
        Format::Human | Format::Wide => {
            let is_wide = session.format == Format::Wide;
            let mut head = vec!["WORKER", "STATE", "BUSY", "QUEUES", "KINDS", "SEEN", "FORWARDS TO"];
            if is_wide {
                head.extend(["SENT", "FAILED", "ERROR", "HOST", "PID", "VERSION", "ID"]);
            }
            let mut table = Table::new(head);
            for worker in &all {
                let mut row = short(worker, now);
                if is_wide {
                    row.extend(wide(worker));
                }
                table.row(row);
            }
            table.print(out)?;
        }
    }
    Ok(())
}

fn short(worker: &WorkerInfo, now: Timestamp) -> Vec<String> {
    let state = match worker.order {
        // It has not found its order yet.
        Some(order) if worker.state != WorkerState::Missing => format!("{}, {}", worker.state, order.name()),
        _ => worker.state.to_string(),
    };
    let queues = worker.queues.iter().map(|queue| match queue.weight {
        Some(weight) => format!("{}={weight}", queue.name),
        None => queue.name.clone(),
    });
    let more = (0 < worker.more_kinds).then(|| format!("and {} more", worker.more_kinds));
    vec![
        worker.name.clone(),
        state,
        format!("{}/{}", worker.busy, worker.slots),
        queues.collect::<Vec<_>>().join(" "),
        worker.kinds.iter().cloned().chain(more).collect::<Vec<_>>().join(" "),
        relative(worker.seen, now),
        worker.forwards.as_ref().map(|forwards| forwards.to.clone()).unwrap_or_default(),
    ]
}

fn wide(worker: &WorkerInfo) -> Vec<String> {
    let forwards = worker.forwards.as_ref();
    vec![
        forwards.map(|forwards| grouped(forwards.sent)).unwrap_or_default(),
        forwards.map(|forwards| grouped(forwards.failed)).unwrap_or_default(),
        forwards.and_then(|of| of.error.as_deref()).map(|text| cut(text, ERROR_CHARS)).unwrap_or_default(),
        worker.host.clone(),
        worker.pid.to_string(),
        worker.version.clone(),
        worker.id.clone(),
    ]
}

async fn order(session: &mut Session, text: &str, order: WorkerOrder) -> Result {
    let id = id(session, text).await?;
    let Some(worker) = session.client.order_worker(&id, order).await? else { return Err(unknown(text)) };
    match session.format {
        Format::Json | Format::Ndjson => json(&mut session.out, &worker)?,
        Format::Ids => writeln!(session.out, "{}", clean(&worker.id))?,
        Format::Human | Format::Wide => {
            writeln!(session.out, "ordered {}  worker {}", order.name(), clean(&worker.name))?;
        }
    }
    let is_missing = worker.state == WorkerState::Missing;
    session.say(if is_missing {
        "warning: the worker has not been seen for 60 s, and may never find the order"
    } else {
        "the worker follows the order within 17 s; punctual worker ls    shows its state"
    });
    Ok(())
}

/// Returns the id of a worker, which a person can also name.
async fn id(session: &Session, text: &str) -> Result<String> {
    let is_id = text.len() == ID_DIGITS && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    if is_id {
        return Ok(text.to_owned());
    }
    let (all, _) = all(session).await?;
    let mut named: Vec<WorkerInfo> = all.into_iter().filter(|worker| worker.name == text).collect();
    // One that was killed can have had the same name.
    if named.iter().any(|worker| worker.state != WorkerState::Missing) {
        named.retain(|worker| worker.state != WorkerState::Missing);
    }
    match named.as_slice() {
        [worker] => Ok(worker.id.clone()),
        [] => Err(unknown(text)),
        [first, ..] => Err(Failure::invalid(format!("{} workers have the name {text:?}", named.len()))
            .hint(format!("name one of them by its id, such as {}: punctual worker ls -o wide", first.id))),
    }
}

fn unknown(text: &str) -> Failure {
    Failure::not_found(format!("there is no worker {text:?}")).hint("punctual worker ls    lists all workers")
}
