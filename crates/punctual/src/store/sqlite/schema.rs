//! The tables, made and kept up to date by migrations that are only ever appended.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::{fault, tx::int};
use crate::error::{Error, ErrorKind, Result};

/// Each brings a file from the version of its place in the list to the next one.
const MIGRATIONS: &[&str] = &[
    include_str!("sql/0001_init.sql"),
    include_str!("sql/0002_doc.sql"),
    include_str!("sql/0003_gate.sql"),
    include_str!("sql/0004_tool.sql"),
];

/// Brings the file to this version's schema; a newer one is refused, because this version would break its promises.
pub(super) fn migrate(conn: &mut Connection, path: &Path) -> Result<()> {
    let failed = |e| fault::error("prepare the tables in", path, e);
    let newest = int(MIGRATIONS.len());
    if version(conn).map_err(failed)? == newest {
        return Ok(());
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Looked up again under the lock: another process may have been faster.
    let found = version(&tx).map_err(failed)?;
    let todo = usize::try_from(found).ok().and_then(|done| MIGRATIONS.get(done..));
    let Some(todo) = todo else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} has schema version {found}, this punctual knows up to {newest}", path.display()),
        )
        .with_hint("use the newer punctual that wrote the file"));
    };
    for migration in todo {
        tx.execute_batch(migration).map_err(failed)?;
    }
    tx.execute("INSERT OR REPLACE INTO punctual_meta (k, v) VALUES ('schema', ?1)", [newest])
        .map_err(failed)?;
    tx.commit().map_err(failed)
}

/// The version of the file's schema; 0 before the first migration.
pub(super) fn version(conn: &Connection) -> rusqlite::Result<i64> {
    let made = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'punctual_meta'";
    if conn.query_row(made, [], |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    conn.query_row("SELECT v FROM punctual_meta WHERE k = 'schema'", [], |row| row.get(0))
}
