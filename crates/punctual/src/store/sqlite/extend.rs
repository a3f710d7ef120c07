//! `extend`: the heartbeat.

use rusqlite::params;

use super::{
    fault::Step,
    sql::named,
    tx::{Tx, ms},
};
use crate::store::{Lease, LeaseStatus};

const EXTEND: &str = named(include_str!("sql/settle.sql"), "extend");

/// Extends the leases that are current, past their time or not (S8, S9).
pub(super) fn extend(tx: &mut Tx<'_>, leases: &[Lease]) -> Step<Vec<LeaseStatus>> {
    tx.touch_clock()?;
    let mut stmt = tx.conn.prepare_cached(EXTEND)?;
    let mut answers = Vec::with_capacity(leases.len());
    for lease in leases {
        let Some(row) = tx.lease(lease.job)?.filter(|row| row.is(lease)) else {
            answers.push(LeaseStatus::Lost);
            continue;
        };
        let lasts = std::time::Duration::from_millis(row.lasts_ms.cast_unsigned());
        stmt.execute(params![lease.job.as_bytes(), ms(tx.now.after(lasts))])?;
        answers.push(if row.cancel_requested() { LeaseStatus::CancelRequested } else { LeaseStatus::Held });
    }
    Ok(answers)
}
