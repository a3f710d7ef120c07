//! The last part of an audit: recomputes the counters and corrects those that are wrong, without holding up other
//! calls.
//!
//! ```text
//! snapshot ── slices of ≤ 1,000 rows ──► counted, kept (both of that moment) ── kept += counted − kept ──► next queues
//!     ▲                                                                               │ a repair was made since
//!     └───────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A transaction that moves a job also changes the counters, so the error of a counter does not depend on other
//! calls. The error is the difference between the counter and the rows at one moment. All slices see this moment in
//! one snapshot of the file. The correction subtracts the error from the current counter. It is a short transaction
//! over up to 1,000 queues, and correct however old the snapshot is. No lock is held while counting.
//!
//! Only repairs change the error of a counter: they mend entries and leave the counters to this part. A correction
//! must also not be made twice. So each repair and correction increments a number, and a correction applies only if
//! the number is still that of its snapshot. Otherwise the count starts again. That ends, because there is only so
//! much to repair. It also starts again if the snapshot is gone, or belongs to another process.

use std::collections::HashMap;

use rusqlite::{OptionalExtension, types::Value};

use super::{FILE, From, lowest, page};
use crate::{
    core::{error::Result, limits::BATCH_MAX},
    store::{
        Audited, Finding, QueueSettings,
        sqlite::{
            SqliteStore,
            engine::{
                fault::Step,
                sql::named,
                tx::{Tally, Tx},
            },
            state::places::{Place, ended_state, kept_bytes},
            verbs::reserve::job_id,
        },
    },
};

const REPAIRS: &str = named(FILE, "repairs");
const RAISE_REPAIRS: &str = named(FILE, "raise_repairs");

/// Where a count continues: in which snapshot, after how many slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::sqlite) struct At {
    pub(in crate::store::sqlite) snapshot: u64,
    pub(in crate::store::sqlite) step: u32,
}

/// The rows that a pass counts.
#[derive(Clone, Copy)]
enum Rows {
    Due,
    Blocked,
    Grouped,
    Leases,
    Ended,
    Records,
    History,
    Memory,
    /// The last pass: everything is counted by then.
    Queues,
}

/// All passes: rows, their list, and the number of columns of their key.
const PASSES: [(Rows, &str, usize); 9] = [
    (Rows::Due, named(FILE, "due"), 4),
    (Rows::Blocked, named(FILE, "blocked"), 5),
    (Rows::Grouped, named(FILE, "grouped"), 5),
    (Rows::Leases, named(FILE, "lease"), 1),
    (Rows::Ended, named(FILE, "ended"), 1),
    (Rows::Records, named(FILE, "bytes"), 1),
    (Rows::History, named(FILE, "history"), 1),
    (Rows::Memory, named(FILE, "memory"), 2),
    (Rows::Queues, named(FILE, "queues"), 1),
];

/// A count in progress, kept with its snapshot.
#[derive(Debug, Default)]
pub(in crate::store::sqlite) struct Count {
    /// Slices so far.
    step: u32,
    pass: usize,
    /// The key of the last row of this pass; empty at its beginning.
    behind: Vec<Value>,
    tallies: HashMap<i64, Tally>,
    /// What the current slice found.
    wrong: Vec<Wrong>,
}

/// A queue with wrong counters or settings.
#[derive(Debug)]
struct Wrong {
    qid: i64,
    name: String,
    kept: Tally,
    counted: Tally,
    /// Whether its settings cannot be read.
    corrupt: bool,
}

/// What a slice found.
struct Slice {
    checked: usize,
    wrong: Vec<Wrong>,
    /// Slices so far; `None` after the last one.
    step: Option<u32>,
    repairs: Option<Value>,
}

/// Counts one slice; corrects what is wrong if `repair` is set.
pub(super) async fn slice(store: &SqliteStore, at: Option<At>, repair: bool) -> Result<Audited> {
    let (snapshot, step) = (at.map(|at| at.snapshot), at.map_or(0, |at| at.step));
    let counting = store.snapshots.run(store, snapshot, move |tx, count| count.slice(tx, step));
    let (snapshot, Slice { checked, wrong, step, repairs }) = counting.await?;
    let next = |at: Option<At>| Some(From::Counters(at).write());
    let audited = Audited {
        checked: checked as u64,
        findings: wrong.iter().flat_map(|wrong| wrong.findings(repair)).collect(),
        next: step.and_then(|step| next(Some(At { snapshot, step }))),
    };
    let counts = if repair && !wrong.is_empty() {
        store.write(BATCH_MAX, 0, true, move |tx| correct(tx, repairs.as_ref(), &wrong)).await?
    } else {
        true
    };
    if audited.next.is_none() || !counts {
        store.snapshots.end(snapshot);
    }
    Ok(if counts { audited } else { Audited { findings: Vec::new(), next: next(None), ..audited } })
}

/// Subtracts the errors from the counters, unless a repair was made since they were compared.
fn correct(tx: &mut Tx<'_>, repairs: Option<&Value>, wrong: &[Wrong]) -> Step<bool> {
    if number_of_repairs(tx)?.as_ref() != repairs {
        return Ok(false);
    }
    for Wrong { qid, kept, counted, .. } in wrong {
        let Some(q) = tx.queue_by_qid(*qid)? else { continue };
        tx.tally(q).shift(*kept, *counted);
        if tx.at(q).corrupt {
            tx.put_settings(q, QueueSettings::unreadable())?;
        }
    }
    raise_repairs(tx)?;
    Ok(true)
}

fn number_of_repairs(tx: &Tx<'_>) -> Step<Option<Value>> {
    Ok(tx.conn.prepare_cached(REPAIRS)?.query_row([], |row| row.get(0)).optional()?)
}

/// Invalidates counts in progress, because their findings may be wrong now.
pub(super) fn raise_repairs(tx: &Tx<'_>) -> Step<()> {
    tx.conn.prepare_cached(RAISE_REPAIRS)?.execute([])?;
    Ok(())
}

impl Wrong {
    fn findings(&self, repaired: bool) -> Vec<Finding> {
        let finding = |what: &'static str, detail| Finding {
            id: None,
            queue: Some(self.name.clone()),
            what: what.into(),
            detail,
            repaired,
        };
        let mut findings = Vec::new();
        if self.counted != self.kept {
            findings.push(finding("counter", self.kept.differences(self.counted)));
        }
        if self.corrupt {
            let detail = "settings that can't be read, so the queue is paused; a repair pauses it for good, with the defaults otherwise";
            findings.push(finding("corrupt", detail.to_owned()));
        }
        findings
    }
}

impl Count {
    /// Continues after `step` slices, by up to 1,000 rows. Starts again if the count is at another step, after a
    /// slice that failed or whose answer was lost.
    fn slice(&mut self, tx: &mut Tx<'_>, step: u32) -> Step<Slice> {
        let mut count = std::mem::take(self);
        if count.step != step {
            count = Self::default();
        }
        let mut checked = 0;
        while let Some(&(of, list, key_columns)) = PASSES.get(count.pass)
            && checked < BATCH_MAX
        {
            if count.behind.is_empty() {
                count.behind = lowest(key_columns);
            }
            let asked = BATCH_MAX - checked;
            let rows = page(tx, list, &count.behind, asked)?;
            checked += rows.len();
            for row in &rows {
                count.row(tx, of, row)?;
            }
            let ended = rows.len() < asked;
            count.behind = rows.into_iter().next_back().filter(|_| !ended).unwrap_or_default();
            count.behind.truncate(key_columns);
            count.pass += usize::from(ended);
        }
        count.step += 1;
        let next = (count.pass < PASSES.len()).then_some(count.step);
        let (wrong, repairs) = (std::mem::take(&mut count.wrong), number_of_repairs(tx)?);
        *self = count;
        Ok(Slice { checked, wrong, step: next, repairs })
    }

    fn row(&mut self, tx: &mut Tx<'_>, of: Rows, row: &[Value]) -> Step<()> {
        match of {
            Rows::Due | Rows::Blocked | Rows::Grouped => self.add(&row[0], |tally| tally.waiting += 1),
            Rows::Leases => self.add(&row[1], |tally| tally.running += 1),
            Rows::Ended => self.add(&row[1], |tally| {
                let (kept, bytes) = (tally.kept(ended_state(integer(&row[2]))), kept_bytes(integer(&row[3])));
                kept.jobs += 1;
                kept.bytes = kept.bytes.saturating_add(bytes);
                tally.bytes = tally.bytes.saturating_sub(bytes);
            }),
            // Counts all jobs. Ended ones are subtracted above with their results, which are counted with the rows of
            // `punctual_past`.
            Rows::Records => {
                self.add(&row[1], |tally| tally.bytes = tally.bytes.saturating_add(integer(&row[2])));
            }
            Rows::History => self.history(tx, row)?,
            Rows::Memory => self.add(&row[0], |tally| tally.remembered += 1),
            Rows::Queues => self.compare(tx, row)?,
        }
        Ok(())
    }

    /// Counts a row, if it names a queue.
    fn add(&mut self, qid: &Value, add: impl FnOnce(&mut Tally)) {
        if let Value::Integer(qid) = qid {
            add(self.tallies.entry(*qid).or_default());
        }
    }

    /// An ended job can have a result. Only a waiting job that was tried before is retrying.
    fn history(&mut self, tx: &mut Tx<'_>, row: &[Value]) -> Step<()> {
        let [Value::Blob(id), attempt, result, ended_in] = row else { return Ok(()) };
        self.add(ended_in, |tally| tally.bytes = tally.bytes.saturating_add(integer(result)));
        let Some(id) = job_id(id).filter(|_| 1 < integer(attempt)) else { return Ok(()) };
        if let Some(job) = tx.job(id)?
            && matches!(Place::of(tx, &job)?, Place::Waiting)
        {
            self.tallies.entry(job.qid).or_default().retrying += 1;
        }
        Ok(())
    }

    fn compare(&mut self, tx: &mut Tx<'_>, row: &[Value]) -> Step<()> {
        let qid = integer(&row[0]);
        let Some(q) = tx.queue_by_qid(qid)? else { return Ok(()) };
        let (queue, counted) = (tx.at(q), self.tallies.get(&qid).copied().unwrap_or_default().countable());
        if counted != queue.tally || queue.corrupt {
            let (name, kept, corrupt) = (queue.name.clone(), queue.tally, queue.corrupt);
            self.wrong.push(Wrong { qid, name, kept, counted, corrupt });
        }
        Ok(())
    }
}

/// Returns the integer, or 0 for an invalid value.
fn integer(value: &Value) -> i64 {
    if let Value::Integer(n) = value { *n } else { 0 }
}
