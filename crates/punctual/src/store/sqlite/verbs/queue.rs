//! `queue` and `queues`: settings, and operations on all jobs of one queue.

use rusqlite::params;

use crate::{
    core::{
        error::{Error, ErrorKind},
        job::{Priority, cut_error},
        limits::{BATCH_MAX, DUE_COUNT_MAX},
        time::Timestamp,
    },
    store::{
        Pause, QueueInfo, QueueOp, QueueReply, QueueSettings,
        sqlite::{
            engine::{
                fault::Step,
                sql::named,
                tx::{Q, Tx, int},
            },
            verbs::{
                read::due_times::count_due,
                reserve::{
                    first_due, first_due_of,
                    pick::{due_rows, quarantine},
                },
            },
        },
    },
};

const FILE: &str = include_str!("../sql/queue.sql");
const NAMES: &str = named(FILE, "names");
const QUEUES: &str = named(FILE, "queues");

/// Returns the settings and counts of a queue.
pub(crate) fn show(tx: &mut Tx<'_>, name: &str) -> Step<QueueReply> {
    match tx.queue(name)? {
        Some(q) => info(tx, q),
        None => Ok(QueueReply::Unknown),
    }
}

fn info(tx: &Tx<'_>, q: Q) -> Step<QueueReply> {
    let queue = tx.at(q);
    let mut counts = queue.tally.counts();
    counts.due = count_due(tx, Some(q), DUE_COUNT_MAX)?;
    let (rest, grouped) = (first_due_of(tx.conn, queue.qid)?, tx.first_grouped(q)?);
    let oldest_due = rest.into_iter().chain(grouped).min().filter(|&t| t <= tx.now);
    let (name, settings) = (queue.name.clone(), queue.settings.clone());
    let opens_at = Some(tx.opens_in_time(q)).filter(|at| tx.now < *at);
    let oldest_blocked = tx.oldest_blocked(q)?;
    Ok(QueueReply::Info(Box::new(QueueInfo { name, settings, counts, oldest_due, oldest_blocked, opens_at })))
}

/// Returns the names after `after`, sorted by bytes.
pub(crate) fn names(tx: &Tx<'_>, after: Option<&str>) -> Step<Vec<String>> {
    let mut stmt = tx.conn.prepare_cached(NAMES)?;
    let names = stmt.query_map(params![after, int(BATCH_MAX)], |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

/// Returns the first `n` queues after a name.
pub(crate) fn queues_behind(tx: &mut Tx<'_>, after: Option<&str>, n: usize) -> Step<Vec<Q>> {
    let qids: Vec<i64> = {
        let mut stmt = tx.conn.prepare_cached(QUEUES)?;
        let read = stmt.query_map(params![after.unwrap_or_default(), int(n)], |row| row.get(0))?;
        read.collect::<Result<_, _>>()?
    };
    let mut queues = Vec::with_capacity(qids.len());
    for qid in qids {
        queues.extend(tx.queue_by_qid(qid)?);
    }
    Ok(queues)
}

fn unreadable(name: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the settings of queue {name:?} cannot be read by this version; the queue is paused"),
    )
    .with_hint("start the version that wrote them, or set all of them again with `punctual queue set`")
}

/// Changes a queue.
pub(crate) fn change(tx: &mut Tx<'_>, name: &str, op: &QueueOp) -> Step<QueueReply> {
    let q = match op {
        QueueOp::Replace(change) if tx.queue(name)?.is_none() && !change.fits(&QueueSettings::default()) => {
            return Ok(QueueReply::Conflict(Box::new(QueueInfo::unknown(name))));
        }
        QueueOp::Pause { .. } | QueueOp::Set(_) | QueueOp::Replace(_) => tx.queue_or_new(name)?,
        QueueOp::Show | QueueOp::Resume | QueueOp::Open { .. } | QueueOp::Purge(_) => {
            match tx.queue(name)? {
                Some(q) => q,
                None => return Ok(QueueReply::Unknown),
            }
        }
    };
    let settings = tx.at(q).settings.clone();
    match op {
        QueueOp::Show => {}
        // Writing unreadable settings back would lose those of a newer version.
        QueueOp::Pause { .. } | QueueOp::Resume if tx.at(q).corrupt => return Err(unreadable(name).into()),
        QueueOp::Pause { by, reason } => {
            let (by, reason) = (cut_error(by).to_owned(), cut_error(reason).to_owned());
            let paused = Some(Pause { since_ms: tx.now.as_ms(), by, reason });
            tx.put_settings(q, QueueSettings { paused, ..settings })?;
        }
        QueueOp::Resume => {
            tx.put_settings(q, QueueSettings { paused: None, ..settings })?;
            if let Some(t) = first_due(tx, q)? {
                tx.notify(q, t);
            }
        }
        QueueOp::Set(new) => replace(tx, q, settings, new)?,
        QueueOp::Replace(change) => {
            if !change.fits(&settings) {
                return Ok(match info(tx, q)? {
                    QueueReply::Info(info) => QueueReply::Conflict(info),
                    other => other,
                });
            }
            replace(tx, q, settings, &change.new)?;
        }
        QueueOp::Open { group } => {
            match group {
                None => tx.open(q),
                Some(name) => tx.open_group(q, name)?,
            }
            tx.hand_over()?;
            if let Some(t) = first_due(tx, q)? {
                tx.notify(q, t);
            }
        }
        QueueOp::Purge(limit) => return purge(tx, q, *limit),
    }
    info(tx, q)
}

fn replace(tx: &mut Tx<'_>, q: Q, settings: QueueSettings, new: &QueueSettings) -> Step<()> {
    tx.put_settings(q, QueueSettings { paused: settings.paused, ..new.clone() })?;
    if (settings.group, &settings.groups) != (new.group, &new.groups) {
        tx.limits_changed(q)?;
    }
    // The new settings may allow more jobs to run.
    if let Some(t) = first_due(tx, q)? {
        tx.notify(q, t);
    }
    Ok(())
}

/// Deletes waiting jobs. First ungrouped ones, in the order in which they would run; then blocked ones, key by key;
/// then those with a group, group by group.
fn purge(tx: &mut Tx<'_>, q: Q, limit: usize) -> Step<QueueReply> {
    let mut deleted = 0;
    for priority in Priority::ALL {
        for row in due_rows(tx, q, priority, Timestamp::MAX, limit - deleted)? {
            if let Some(mut job) = row.job(tx)? {
                tx.stop_waiting(q, &job)?;
                tx.delete_waiting(q, &mut job)?;
                deleted += 1;
            } else {
                row.drop(tx, q, priority)?;
                quarantine(tx, q, &row)?;
            }
        }
    }
    for row in tx.blocked_rows(q, limit - deleted)? {
        if let Some(mut job) = row.job(tx)? {
            tx.stop_waiting(q, &job)?;
            tx.delete_waiting(q, &mut job)?;
            deleted += 1;
        } else {
            tx.drop_blocked(q, &row)?;
            tx.tally(q).waiting -= 1;
        }
    }
    for row in tx.grouped_rows(q, limit - deleted)? {
        if let Some(mut job) = row.job(tx)? {
            tx.stop_waiting(q, &job)?;
            tx.delete_waiting(q, &mut job)?;
            deleted += 1;
        } else {
            tx.tally(q).waiting -= 1;
        }
        // Also for a record without a readable group.
        tx.drop_grouped(q, &row)?;
    }
    tx.hand_over()?;
    let more = 0 < tx.at(q).tally.waiting;
    Ok(QueueReply::Purged { deleted: deleted as u64, more })
}
