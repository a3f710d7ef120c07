//! Failures inside a transaction, and the mapping of SQLite's errors to those of the contract.

use std::{fs::File, io, path::Path};

use rusqlite::ErrorCode;

use crate::core::error::{Error, ErrorKind};

/// Why an operation did not do its work.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It was refused before its first write. Other operations of the same transaction stand.
    Refused(Error),
    /// SQLite failed, possibly half-way: the transaction must be rolled back.
    Failed(rusqlite::Error),
}

/// The result of one step inside a transaction.
pub(crate) type Step<T> = Result<T, Stop>;

impl From<rusqlite::Error> for Stop {
    fn from(e: rusqlite::Error) -> Self {
        Self::Failed(e)
    }
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Refused(e)
    }
}

impl Stop {
    /// Converts it into the error for the caller.
    pub(crate) fn into_error(self, what: &str, path: &Path) -> Error {
        match self {
            Self::Refused(e) => e,
            Self::Failed(e) => error(what, path, e),
        }
    }
}

/// What to try if a file cannot be opened.
pub(crate) const UNOPENED: &str = "check that the folder exists and that this user may write there";

/// Makes the error `could not <what> <path>`, with the kind, hint and cause of SQLite's error.
pub(crate) fn error(what: &str, path: &Path, e: rusqlite::Error) -> Error {
    let message = format!("could not {what} {}", path.display());
    // The index of the log could not grow.
    let has_no_room =
        e.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
    let (kind, hint) = match e.sqlite_error_code() {
        Some(_) if has_no_room => (ErrorKind::StoreFull, "free some space on its disk; nothing was written"),
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::StoreFull, "free some space on its disk; nothing was written")
        }
        Some(ErrorCode::NotADatabase) => {
            (ErrorKind::Corrupt, "the file is no SQLite database; give another path, or move the file away")
        }
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Corrupt,
            "restore a backup, or copy what can be read into a new file with `punctual recover NEW`",
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            (ErrorKind::Unavailable, "make the file and its folder writable for this user")
        }
        Some(ErrorCode::CannotOpen) => (ErrorKind::Unavailable, without_a_descriptor().unwrap_or(UNOPENED)),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unavailable, "another program holds the file locked; end its transaction")
        }
        // Not SQLite's error, but a value of another type than its column.
        None => (ErrorKind::Corrupt, "let `punctual audit --repair` mend what was damaged"),
        _ => (ErrorKind::Unavailable, "look at the cause; the call may be repeated"),
    };
    Error::new(kind, message).with_hint(hint).with_source(e)
}

/// What to try if the process or the machine has no descriptors left; `None` if an error says something else.
pub(crate) fn without_descriptors(e: &io::Error) -> Option<&'static str> {
    /// The system's error codes for that: `EMFILE`, `ENFILE`.
    const CODES: [i32; 2] = [24, 23];
    let hint = "no file descriptors are left here: raise `ulimit -n`, or look at what has so many files open";
    e.raw_os_error().is_some_and(|code| CODES.contains(&code)).then_some(hint)
}

/// As [`without_descriptors`], where SQLite's error says only that it cannot open a file: asks the system for a descriptor.
pub(crate) fn without_a_descriptor() -> Option<&'static str> {
    without_descriptors(&File::open(".").err()?)
}

/// Checks that a statement removed the rows that were read. If not, the tree of the table is out of order, and they would be read again and
/// again.
///
/// # Errors
/// As SQLite's for a malformed file.
pub(crate) fn all_removed(removed: usize, read: usize) -> Step<()> {
    if removed == read {
        return Ok(());
    }
    let malformed = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    let words = format!("{removed} of {read} rows that were read were removed: a table is out of order");
    Err(Stop::Failed(rusqlite::Error::SqliteFailure(malformed, Some(words))))
}

/// Returns whether an error is of a sync that failed, so that the system has dropped what it should have written.
pub(crate) fn is_of_sync(error: &Error) -> bool {
    use rusqlite::ffi::{SQLITE_IOERR_DIR_FSYNC, SQLITE_IOERR_FSYNC};
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let mut codes = causes
        .filter_map(|cause| Some(cause.downcast_ref::<rusqlite::Error>()?.sqlite_error()?.extended_code));
    codes.any(|code| [SQLITE_IOERR_FSYNC, SQLITE_IOERR_DIR_FSYNC].contains(&code))
}

/// Returns whether a failed commit may have happened: the frames may be on disk although the sync failed.
pub(crate) fn leaves_outcome_unknown(e: &rusqlite::Error) -> bool {
    e.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}
