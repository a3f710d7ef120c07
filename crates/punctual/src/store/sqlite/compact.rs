//! Compaction: rewrites the file without its free pages, and returns their space to the disk.
//!
//! It is done on request, with SQLite's `VACUUM`. Auto-vacuum would do it gradually, but its page map costs each
//! write: 2 % more bytes for an enqueue and 7 % for a take.

use std::{sync::Arc, time::Duration};

use rusqlite::Connection;
use serde::Serialize;

use super::{SqliteOptions, SqliteStore};
use crate::{
    core::error::{Error, ErrorKind, Result},
    store::sqlite::engine::file::Database,
};

/// How long to wait for readers of an old state before the log is cut. Writers wait as long.
const LOG_WAIT: Duration = Duration::from_secs(5);

/// The disk space of a store's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// The size of the file.
    pub file_bytes: u64,
    /// The size of its write-ahead log.
    pub log_bytes: u64,
    /// The size of the pages in use.
    pub used_bytes: u64,
    /// The size of the free pages. New jobs use them before the file grows.
    pub free_bytes: u64,
}

/// The effect of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compacted {
    /// The space before it.
    pub before: Space,
    /// The space after it.
    pub after: Space,
}

impl SqliteStore {
    /// Returns how much disk space the file takes, and how much of it is free.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// Any error of reading the file.
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

    /// Rewrites the file without its free pages, and returns their space to the disk.
    ///
    /// Other processes can read meanwhile. Their writes wait, up to 30 s each; longer ones fail with `Unavailable`,
    /// and workers repeat them. After a compaction, also a failed one, no lease is reclaimed for one heartbeat, so
    /// that workers can extend theirs first. It needs as much free space as [`Space::used_bytes`] in the folder of
    /// the file. It needs the same again in the folder for temporary files (`SQLITE_TMPDIR`, else `TMPDIR`, else
    /// `/var/tmp`).
    ///
    /// If the future is dropped, the compaction goes on in the background. A crash leaves the file as it was.
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
    /// `StoreFull` if the disk is full. `Unavailable` if another program holds the file for 30 s. `Unsupported` for a
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

/// Compacts the file with a connection of its own, because a lock belongs to the connection, not to the thread.
fn compact(opened: &Database, options: SqliteOptions) -> Result<()> {
    opened.check_in_place()?;
    opened.check_log()?;
    let options = SqliteOptions { create: false, read_only: false, ..options };
    let (database, conn) = Database::open(opened.path(), &options)?;
    let conn = conn.ok_or_else(|| database.only_looked_at())?;
    let failed = |e| database.error("compact", e);
    {
        let guard = database.lock()?;
        database.check_in_place()?;
        if let Err(e) = conn.execute_batch("VACUUM") {
            let error = failed(e);
            // Its writes until then must not fill the disk. If this fails, too, the next writer cuts the log.
            let _ = database
                .check_log()
                .is_ok_and(|()| database.copy_log(&conn, Some(&guard), || cut_log(&conn)).is_ok());
            return Err(error);
        }
    }
    // Copied while others write; only the rest is copied under the lock.
    database.copy_log(&conn, None, || conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())))?;
    let guard = database.lock()?;
    database.check_log()?;
    database.copy_log(&conn, Some(&guard), || cut_log(&conn))
}

/// Copies the log into the file and cuts it. If a reader of an old state prevents this, a later checkpoint does it.
fn cut_log(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(LOG_WAIT)?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}
