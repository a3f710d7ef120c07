//! The three names of a file: the database, its log and the index of the log. They are one thing.
//!
//! ```text
//! jobs.db ◄──checkpoints── jobs.db-wal ◄──finds frames by── jobs.db-shm     each name, or a file with this name, can go
//! ```
//!
//! SQLite keeps using the files that it opened when their names are removed. A process that opens the database afterwards makes new
//! ones, and does not see what is in the old ones. So nothing is written after one of the names has gone, and nobody who comes then
//! makes new ones beside a process that has the old ones (`users`).

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::SystemTime,
};

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::sqlite::engine::{file::with_suffix, place},
};

/// The device and the number of a file.
pub(crate) type Identity = (u64, u64);

/// The names of a database and of the files that belong to it.
#[derive(Debug)]
pub(crate) struct Names {
    /// Its real path.
    pub(crate) database: PathBuf,
    pub(crate) log: PathBuf,
    index: PathBuf,
    opened: OnceLock<Opened>,
}

/// The files that had the names when the database was opened.
#[derive(Debug)]
struct Opened {
    database: Option<Identity>,
    /// Those of the log and its index; `None` for who only reads.
    beside: Option<[Option<Identity>; 2]>,
}

impl Names {
    pub(crate) fn of(database: PathBuf) -> Self {
        let (log, index) = (with_suffix(&database, "-wal"), with_suffix(&database, "-shm"));
        Self { database, log, index, opened: OnceLock::new() }
    }

    /// Notes which files have the names now. A connection must have read, so that all three exist.
    pub(crate) fn note(&self, writes: bool) {
        self.opened.get_or_init(|| Opened {
            database: identity(&self.database),
            beside: writes.then(|| [identity(&self.log), identity(&self.index)]),
        });
    }

    /// Returns whether the log and its index have their names.
    pub(crate) fn has_log(&self) -> bool {
        self.log.exists() && self.index.exists()
    }

    /// Returns whether the log holds anything.
    pub(crate) fn has_frames(&self) -> bool {
        fs::metadata(&self.log).is_ok_and(|meta| 0 < meta.len())
    }

    /// Returns when the log was last written.
    pub(crate) fn written(&self) -> Option<SystemTime> {
        written(&self.log)
    }

    /// Returns when the database was last written.
    pub(crate) fn copied(&self) -> Option<SystemTime> {
        written(&self.database)
    }

    /// Refuses to use files that do not have their names any more, because nobody else would find what is written to them, and to write
    /// to a database that has another name.
    pub(crate) fn check_in_place(&self) -> Result<()> {
        let Some(Opened { database, beside }) = self.opened.get() else { return Ok(()) };
        let found = fs::metadata(&self.database).ok();
        if found.as_ref().and_then(identity_of) != *database {
            return Err(gone(&self.database, "start this program again, or put the file back where it was"));
        }
        let Some([log, index]) = beside else { return Ok(()) };
        for (path, opened) in [(&self.log, log), (&self.index, index)] {
            if identity(path) != *opened {
                return Err(gone(
                    path,
                    "start this program again; nothing may remove -wal or -shm while programs use the file",
                ));
            }
        }
        found.map_or(Ok(()), |found| place::check_names(&self.database, &found))
    }

    /// Returns whether only the log's name has gone, or those of the log and its index, and nobody has begun another log. What is in the
    /// old one can then be copied into the database.
    pub(crate) fn can_save_log(&self) -> bool {
        let Some(Opened { database, beside: Some([log, _]) }) = self.opened.get() else { return false };
        let there = fs::metadata(&self.log).ok();
        let has_gone = there.as_ref().and_then(identity_of) != *log;
        has_gone && identity(&self.database) == *database && there.is_none_or(|other| other.len() == 0)
    }
}

fn gone(path: &Path, hint: &str) -> Error {
    let path = path.display();
    let text = format!("{path} was removed or replaced since it was opened; nothing was written");
    Error::new(ErrorKind::Closed, text).with_hint(hint)
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// Returns which file is at a path.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().as_ref().and_then(identity_of)
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "on other systems there is none")]
fn identity_of(found: &fs::Metadata) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    Some((found.dev(), found.ino()))
}

/// On other systems an open file cannot be removed.
#[cfg(not(unix))]
const fn identity_of(_found: &fs::Metadata) -> Option<Identity> {
    None
}
