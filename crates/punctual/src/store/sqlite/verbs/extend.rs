//! `extend`: the heartbeat.

use std::time::Duration;

use rusqlite::params;

use crate::{
    core::{id::JobId, time::ceil_ms},
    store::{
        Heartbeat, LeaseStatus,
        sqlite::{
            engine::{
                fault::Step,
                sql::named,
                tx::{Tx, ms},
            },
            state::places::LeaseRow,
        },
    },
};

const FILE: &str = include_str!("../sql/settle.sql");
const EXTEND: &str = named(FILE, "extend");
const PUT_NOTES: &str = named(FILE, "put_notes");

/// Extends the leases that are current, expired or not (S8, S9), and stores the notes of their runs.
pub(crate) fn extend(tx: &mut Tx<'_>, beats: &[Heartbeat]) -> Step<Vec<LeaseStatus>> {
    tx.mark()?;
    let mut answers = Vec::with_capacity(beats.len());
    for Heartbeat { lease, notes, company, lasts } in beats {
        let Some(mut row) = tx.lease(lease.job)?.filter(|row| row.is(lease)) else {
            answers.push(LeaseStatus::Lost);
            continue;
        };
        if *company {
            row.flags |= LeaseRow::COMPANY;
        }
        if let Some(notes) = notes {
            row.flags |= LeaseRow::HISTORY;
            tx.conn.prepare_cached(PUT_NOTES)?.execute(params![lease.job.as_bytes(), notes.text()])?;
        }
        if let Some(lasts) = lasts {
            row.lasts_ms = ceil_ms(*lasts).cast_signed();
        }
        extend_lease(tx, lease.job, &mut row)?;
        answers.push(if row.cancel_requested() { LeaseStatus::CancelRequested } else { LeaseStatus::Held });
    }
    Ok(answers)
}

/// Moves the end of a lease to now plus its length.
pub(crate) fn extend_lease(tx: &Tx<'_>, id: JobId, row: &mut LeaseRow) -> Step<()> {
    row.until = tx.now.after(Duration::from_millis(row.lasts_ms.cast_unsigned()));
    tx.conn.prepare_cached(EXTEND)?.execute(params![
        id.as_bytes(),
        ms(row.until),
        row.lasts_ms,
        row.flags
    ])?;
    Ok(())
}
