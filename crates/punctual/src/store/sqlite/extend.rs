//! `extend`: the heartbeat.

use rusqlite::params;

use super::{
    fault::Step,
    place::LeaseRow,
    sql::named,
    tx::{Tx, ms},
};
use crate::store::{Heartbeat, LeaseStatus};

const FILE: &str = include_str!("sql/settle.sql");
const EXTEND: &str = named(FILE, "extend");
const PUT_NOTES: &str = named(FILE, "put_notes");

/// Extends the leases that are current, past their time or not (S8, S9), and keeps what their runs tell.
pub(super) fn extend(tx: &mut Tx<'_>, beats: &[Heartbeat]) -> Step<Vec<LeaseStatus>> {
    tx.touch_clock()?;
    let mut stmt = tx.conn.prepare_cached(EXTEND)?;
    let mut answers = Vec::with_capacity(beats.len());
    for Heartbeat { lease, notes } in beats {
        let Some(row) = tx.lease(lease.job)?.filter(|row| row.is(lease)) else {
            answers.push(LeaseStatus::Lost);
            continue;
        };
        let (id, mut flags) = (lease.job.as_bytes(), row.flags);
        if let Some(notes) = notes {
            flags |= LeaseRow::PAST;
            tx.conn.prepare_cached(PUT_NOTES)?.execute(params![id, notes.text()])?;
        }
        let lasts = std::time::Duration::from_millis(row.lasts_ms.cast_unsigned());
        stmt.execute(params![id, ms(tx.now.after(lasts)), flags])?;
        answers.push(if row.cancel_requested() { LeaseStatus::CancelRequested } else { LeaseStatus::Held });
    }
    Ok(answers)
}
