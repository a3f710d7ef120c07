//! Who has a store open: each such process holds a shared lock on a sidecar, `<database>-open`. The system drops it when the process ends
//! in whatever way.
//!
//! A process that comes while others have the store open must find their log and its index. Otherwise somebody removed them, and it would
//! make new ones, beside which those of the others would be lost. The sidecar names the file that they have open: after a restore it is
//! another one, which has no log yet.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Seek, Write},
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::sqlite::engine::{
        file::{cannot, private, share_as, with_suffix},
        names::{Names, identity},
    },
};

/// How often to look again for a process that removes the log because it was the last one, and is about to end.
const LOOKS_MAX: usize = 400;
/// The pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// The place of this process among those that have a store open.
#[derive(Debug)]
pub(crate) struct Users {
    path: PathBuf,
    file: File,
    /// Names the file that is opened.
    opened: String,
}

impl Users {
    /// Refuses a store that others have open, and whose log or its index was removed. Called before anything looks into the database, since
    /// SQLite makes them anew.
    pub(crate) fn check(names: &Names) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            if names.has_log() {
                return Ok(());
            }
            let path = sidecar(names);
            let Ok(file) = File::open(&path) else { return Ok(()) };
            let users = Self { path, file, opened: opened(names) };
            if !users.is_of_others() || users.is_alone()? {
                return Ok(());
            }
            sleep(LOOK_PAUSE);
        }
        Err(without_log(&names.database))
    }

    /// Comes to a store; returns whether nobody else has it open. The caller holds its lock, so nobody else comes at the same time.
    pub(crate) fn join(names: &Names) -> Result<(Self, bool)> {
        let path = sidecar(names);
        let file = private().create(true).truncate(false).open(&path).map_err(|e| cannot(&path, e))?;
        share_as(&names.database, &path).map_err(|e| cannot(&path, e))?;
        let users = Self { path, file, opened: opened(names) };
        let is_first = users.is_alone()?;
        Ok((users, is_first))
    }

    /// Stays, once the log and its index exist.
    pub(crate) fn stay(&self) -> Result<()> {
        let name = || {
            let mut file = &self.file;
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(self.opened.as_bytes())
        };
        let stay = || {
            // A full disk keeps nobody from running jobs.
            let _: io::Result<()> = if self.is_of_others() { Ok(()) } else { name() };
            // What happens to a lock that is taken twice differs between systems.
            self.file.unlock()?;
            self.file.lock_shared()
        };
        stay().map_err(|e| cannot(&self.path, e))
    }

    /// Returns whether those who have a store open, or had it, have this file open.
    pub(crate) fn is_of_others(&self) -> bool {
        fs::read(&self.path).is_ok_and(|opened| opened == self.opened.as_bytes())
    }

    /// Returns whether nobody else has it open.
    fn is_alone(&self) -> Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(e)) => Err(cannot(&self.path, e)),
        }
    }
}

fn sidecar(names: &Names) -> PathBuf {
    with_suffix(&names.database, "-open")
}

/// Names the file that is at the path.
fn opened(names: &Names) -> String {
    let (device, number) = identity(&names.database).unwrap_or_default();
    format!("{device} {number}\n")
}

fn without_log(database: &Path) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the -wal or -shm of {} was removed while other programs have it open; nothing was written",
            database.display()
        ),
    )
    .with_hint("end those programs gracefully: they save what is in the log; then repeat the call")
}
