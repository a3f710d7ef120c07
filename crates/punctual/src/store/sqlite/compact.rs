//! Compaction: writes the file anew without its free pages, and gives their space back to the disk.
//!
//! It is done on request, by SQLite's `VACUUM`. Auto-vacuum would do it bit by bit, but its map of pages costs each write: 2 % more
//! bytes for an enqueue and 7 % for a take.

use std::{sync::Arc, time::Duration};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use serde::Serialize;

use super::{SqliteOptions, SqliteStore};
use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{
        clock::Clock,
        sqlite::engine::{fault::Stop, file::Database, tx::Tx},
    },
};

/// How long readers of an old state are waited for before the log is cut. Writers wait as long.
const LOG_WAIT: Duration = Duration::from_secs(5);

/// How much of the disk a store's file takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// The size of the file.
    pub file_bytes: u64,
    /// The size of its write-ahead log.
    pub log_bytes: u64,
    /// The pages that hold something.
    pub used_bytes: u64,
    /// The pages that hold nothing. New jobs use them before the file grows.
    pub free_bytes: u64,
}

/// What a compaction changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compacted {
    /// The space before it.
    pub before: Space,
    /// The space after it.
    pub after: Space,
}

impl SqliteStore {
    /// Returns how much of the disk the file takes, and how much of that holds nothing.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// As reading a file fails.
    pub async fn space(&self) -> Result<Space> {
        let pages = |conn: &Connection| {
            let number =
                |pragma: &str| conn.query_row(pragma, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs);
            let (size, all) = (number("PRAGMA page_size")?, number("PRAGMA page_count")?);
            Ok((size, all, number("PRAGMA freelist_count")?))
        };
        let (size, all, free) = self.reader.run(pages).await?;
        let (file_bytes, log_bytes) = self.database.sizes();
        let used = all.saturating_sub(free);
        Ok(Space { file_bytes, log_bytes, used_bytes: used * size, free_bytes: free * size })
    }

    /// Writes the file anew without its free pages, and gives their space back to the disk.
    ///
    /// Other processes can read meanwhile. Their writes wait, up to 30 s each; what takes longer answers `Unavailable`, and
    /// workers try it again. No lease is reclaimed for one heartbeat after it, be it done or not, so that workers can extend theirs first.
    /// It needs as much free space as [`Space::used_bytes`] in the folder of the file, and once more in the folder for
    /// temporary files (`SQLITE_TMPDIR`, else `TMPDIR`, else `/var/tmp`).
    ///
    /// Dropped, it goes on in the background. A crash during it leaves the file as it was.
    ///
    /// ```
    /// use punctual::store::sqlite::{SqliteOptions, SqliteStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("jobs.db");
    /// let store = SqliteStore::open(path, SqliteOptions::default())?;
    /// let compacted = store.compact().await?;
    /// assert_eq!(compacted.after.free_bytes, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `StoreFull` where the disk has no room; `Unavailable` where another program holds the file for 30 s; `Unsupported` for a
    /// store that was opened with `read_only`.
    pub async fn compact(&self) -> Result<Compacted> {
        if self.options.read_only {
            return Err(self.database.only_looked_at());
        }
        let before = self.space().await?;
        let (database, options) = (Arc::clone(&self.database), self.options.clone());
        let work = tokio::task::spawn_blocking(move || compact(&database, options));
        work.await.map_err(|e| {
            Error::new(ErrorKind::Closed, "the runtime ended while the file was compacted").with_source(e)
        })??;
        Ok(Compacted { before, after: self.space().await? })
    }
}

/// Compacts the file by a handle of its own: a lock belongs to the handle, not to the thread.
fn compact(opened: &Database, options: SqliteOptions) -> Result<()> {
    opened.check_in_place()?;
    let options = SqliteOptions { create: false, read_only: false, ..options };
    let (database, conn) = Database::open(&opened.path, &options)?;
    let conn = conn.ok_or_else(|| database.only_looked_at())?;
    let failed = |e| database.error("compact", e);
    {
        let _guard = database.lock()?;
        database.check_in_place()?;
        // Written first: this process may be killed before the end.
        begin_pause(&conn, &options.clock).map_err(|stop| stop.into_error("compact", &database.path))?;
        if let Err(e) = conn.execute_batch("VACUUM") {
            // What it wrote until then must not fill the disk. If that fails too, the next writer cuts the log.
            let _ = cut_log(&conn);
            return Err(failed(e));
        }
    }
    // Copied while others write; only what is left is copied under the lock.
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(failed)?;
    let _guard = database.lock()?;
    cut_log(&conn).map_err(failed)
}

/// Copies the log into the file and cuts it. A reader of an old state keeps it as it is: a later checkpoint does it then.
fn cut_log(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(LOG_WAIT)?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Lets whoever comes after it spare the leases for one heartbeat: nobody can extend them while the file is locked (S14).
fn begin_pause(conn: &Connection, clock: &Clock) -> std::result::Result<(), Stop> {
    let inner = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    let mut tx = Tx::begin(conn, clock)?;
    tx.begin_pause()?;
    tx.finish()?;
    Ok(inner.commit()?)
}
