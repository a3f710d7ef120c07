//! The database file, and the setup of connections to it.
//!
//! It never opens a descriptor of its own on the database or its -shm: closing one would drop the locks that SQLite holds
//! for the whole process. Processes coordinate through a lock on a sidecar file (`file_lock`).

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{
        Durability,
        sqlite::{
            SqliteOptions,
            engine::{
                ballast::Ballast,
                fault,
                file_lock::{Guard, Lock},
                log::Log,
                place, schema,
            },
        },
    },
};

/// The first SQLite without the WAL-reset bug, which can corrupt a file with two connections.
const SQLITE_MIN: i32 = 3_051_003;

/// How long to wait for the lock of a foreign program. Other punctual processes wait at the sidecar.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// A database file that exists and is migrated.
#[derive(Debug)]
pub(crate) struct Database {
    /// Its real path.
    pub(crate) path: PathBuf,
    log: PathBuf,
    /// The file that was at the path when it was opened.
    identity: Option<Identity>,
    cache_mib: u32,
    /// `None` if it was opened read-only.
    pub(crate) lock: Option<Lock>,
    /// No sync of the log ends while a test holds it.
    #[cfg(test)]
    pub(crate) disk: std::sync::Arc<std::sync::Mutex<()>>,
}

/// The device and the number of a file.
pub(crate) type Identity = (u64, u64);

impl Database {
    /// Opens the file, creates it if requested, migrates it, and returns the connection that did so. In read-only
    /// mode it does none of this and returns no connection.
    pub(crate) fn open(path: &Path, options: &SqliteOptions) -> Result<(Self, Option<Connection>)> {
        match Self::try_open(path, options) {
            // A process that comes to a full disk needs some space for the index of the log.
            Err(error)
                if error.kind() == ErrorKind::StoreFull && Ballast::of(&real_path(path)?).give_up() =>
            {
                Self::try_open(path, options)
            }
            opened => opened,
        }
    }

    fn try_open(path: &Path, options: &SqliteOptions) -> Result<(Self, Option<Connection>)> {
        let (durability, create) = (options.durability, options.create);
        check_version(rusqlite::version_number())?;
        if options.read_only {
            return Self::look(path, options).map(|database| (database, None));
        }
        // Before the sidecar, so that nothing is left behind where there is no store and none can be created.
        place::check(path)?;
        probe(path, create)?;
        let path = real_path(path)?;
        let lock = Lock::open(with_suffix(&path, "-lock"))?;
        let mut database = Self {
            log: with_suffix(&path, "-wal"),
            path,
            identity: None,
            cache_mib: options.cache_mib,
            lock: Some(lock),
            #[cfg(test)]
            disk: std::sync::Arc::default(),
        };
        let conn = {
            let _guard = database.lock()?;
            // Created under the lock, so that no other punctual has connections to it when this descriptor closes.
            if create {
                make(&database.path)?;
            }
            let lock = with_suffix(&database.path, "-lock");
            share_as(&database.path, &lock).map_err(|e| cannot(&lock, e))?;
            let mut conn = database.connect("open")?;
            database.set_up_writer(&conn, durability)?;
            schema::migrate(&mut conn, &database.path)?;
            schema::identify(&conn, &database.path)?;
            conn
        };
        database.identity = identity(&database.path);
        Ok((database, Some(conn)))
    }

    /// Opens the file read-only: nothing is created beside it except what SQLite needs.
    fn look(path: &Path, options: &SqliteOptions) -> Result<Self> {
        probe(path, false)?;
        let path = real_path(path)?;
        let log = with_suffix(&path, "-wal");
        let mut database = Self {
            log,
            path,
            identity: None,
            cache_mib: options.cache_mib,
            lock: None,
            #[cfg(test)]
            disk: std::sync::Arc::default(),
        };
        schema::check_as_it_is(&database.reader()?, &database.path)?;
        database.identity = identity(&database.path);
        Ok(database)
    }

    /// Takes the right to write among punctual processes, until the guard is dropped.
    pub(crate) fn lock(&self) -> Result<Guard<'_>> {
        self.lock.as_ref().ok_or_else(|| self.only_looked_at())?.take()
    }

    /// Opens a second way to write, for a second thread: a connection, and a lock of its own. A lock belongs to an open
    /// file, so two threads with one would not exclude each other. The connection keeps few pages.
    pub(crate) fn second_writer(&self) -> Result<(Connection, Lock)> {
        let lock = Lock::open(with_suffix(&self.path, "-lock"))?;
        let conn = self.connect("open")?;
        self.set_up_writer(&conn, Durability::Fast)?;
        conn.pragma_update(None, "cache_size", -SECOND_CACHE_KIB).map_err(|e| self.error("open", e))?;
        Ok((conn, lock))
    }

    /// Returns the write-ahead log, for syncs.
    pub(crate) fn log(&self) -> Log {
        let log = Log::new(self.log.clone());
        #[cfg(test)]
        let log = log.on(std::sync::Arc::clone(&self.disk));
        log
    }

    /// Opens a connection that only reads.
    pub(crate) fn reader(&self) -> Result<Connection> {
        let conn = self.connect("open")?;
        conn.pragma_update(None, "query_only", true).map_err(|e| self.error("open", e))?;
        Ok(conn)
    }

    /// Makes the error for a write to a read-only store.
    pub(crate) fn only_looked_at(&self) -> Error {
        let path = self.path.display();
        Error::new(ErrorKind::Unsupported, format!("{path} was opened for reading only; nothing was written"))
            .with_hint("open it without mode=ro, as a user who may write the file and its folder")
    }

    /// Returns the sizes of the database and its log, in bytes.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
        (size(&self.path), size(&self.log))
    }

    /// Refuses to use a file that is not at its path any more, because its jobs would never be found, and to write to one
    /// that has another name.
    pub(crate) fn check_in_place(&self) -> Result<()> {
        let found = fs::metadata(&self.path).ok();
        if found.as_ref().and_then(identity_of) == self.identity {
            return match found {
                Some(found) if self.lock.is_some() => place::check_names(&self.path, &found),
                _ => Ok(()),
            };
        }
        Err(Error::new(
            ErrorKind::Closed,
            format!(
                "{} was removed or replaced since it was opened; nothing was written",
                self.path.display()
            ),
        )
        .with_hint("start this program again, or put the file back where it was"))
    }

    /// Returns the space that is given up when the disk is full.
    pub(crate) fn ballast(&self) -> Ballast {
        Ballast::of(&self.path)
    }

    /// Returns when the log was last written.
    pub(crate) fn written(&self) -> Option<SystemTime> {
        fs::metadata(&self.log).and_then(|meta| meta.modified()).ok()
    }

    pub(crate) fn error(&self, what: &str, e: rusqlite::Error) -> Error {
        fault::error(what, &self.path, e)
    }

    fn connect(&self, what: &str) -> Result<Connection> {
        let access = match self.lock {
            Some(_) => OpenFlags::SQLITE_OPEN_READ_WRITE,
            None => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags).map_err(|e| self.error(what, e))?;
        let set_up = || {
            conn.busy_timeout(BUSY_TIMEOUT)?;
            conn.set_prepared_statement_cache_capacity(256);
            // Makes plans independent of bound values. Otherwise a range is planned anew at each use (measured: 60 %
            // slower).
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            conn.pragma_update(None, "cache_size", -1_024 * i64::from(self.cache_mib))
        };
        set_up().map_err(|e| self.error(what, e))?;
        Ok(conn)
    }

    fn set_up_writer(&self, conn: &Connection, durability: Durability) -> Result<()> {
        let failed = |e| self.error("open", e);
        if conn.is_readonly("main").map_err(failed)? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("could not open {} for writing", self.path.display()),
            )
            .with_hint("make the file and its folder writable for this user"));
        }
        let mode: String =
            conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
        if mode != "wal" {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} cannot use a write-ahead log (journal_mode is {mode})", self.path.display()),
            )
            .with_hint("put the file on a local disk; network file systems cannot share a log"));
        }
        set_synchronous(conn, durability).map_err(failed)?;
        // The writer does checkpoints after it has answered.
        conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
        conn.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES).map_err(failed)
    }
}

/// A file up to this size is checked within seconds.
pub(crate) const CHECKED_BYTES_MAX: u64 = 256 << 20;

/// The size to which the log is cut when it restarts.
pub(crate) const WAL_KEPT_BYTES: i64 = 64 << 20;

/// The page cache of the second writer's connection, in KiB: the pages of some leases.
const SECOND_CACHE_KIB: i64 = 1_024;

/// FULL syncs the log at each commit, NORMAL only at checkpoints.
pub(crate) fn set_synchronous(conn: &Connection, durability: Durability) -> rusqlite::Result<()> {
    let level = if durability == Durability::Full { "FULL" } else { "NORMAL" };
    conn.pragma_update(None, "synchronous", level)
}

/// Refuses an SQLite version that can corrupt the file.
fn check_version(found: i32) -> Result<()> {
    if SQLITE_MIN <= found {
        return Ok(());
    }
    let shown = |n: i32| format!("{}.{}.{}", n / 1_000_000, n / 1_000 % 1_000, n % 1_000);
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "SQLite {} can corrupt a write-ahead log that two connections use; {} is the first without that bug",
            shown(found),
            shown(SQLITE_MIN)
        ),
    )
    .with_hint("let cargo choose rusqlite 0.39 or later, with its bundled SQLite"))
}

/// Returns options for files that only this user can read, because jobs can hold secrets.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Returns the mode of files beside a database: exactly the users that can write the database can use them.
#[cfg(unix)]
pub(crate) const fn mode_as(database: u32, is_folder: bool) -> u32 {
    let (mut mode, all) = (0, if is_folder { 7 } else { 6 });
    let mut shift = 0;
    while shift <= 6 {
        if shift == 6 || database & (2 << shift) != 0 {
            mode |= all << shift;
        }
        shift += 3;
    }
    mode
}

/// Gives a file or folder to the users that can write the database, as SQLite does with its own files. Only root can
/// change an owner; otherwise it stays, and users that cannot use the file do without it.
#[cfg(unix)]
pub(crate) fn share_as(database: &Path, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let file = fs::File::open(path)?;
    let (open, named, wanted) = (file.metadata()?, fs::symlink_metadata(path)?, fs::metadata(database)?);
    let is_link =
        (open.dev(), open.ino()) != (named.dev(), named.ino()) || (open.is_file() && open.nlink() != 1);
    if is_link {
        // Otherwise root could be made to give away a file elsewhere.
        return Err(io::Error::other(format!("{} is a link", path.display())));
    }
    let (uid, gid) = (wanted.uid(), wanted.gid());
    if (uid, gid) != (open.uid(), open.gid()) {
        let _ = fchown(&file, Some(uid), Some(gid)).or_else(|_| fchown(&file, None, Some(gid)));
    }
    let mode = mode_as(wanted.mode(), open.is_dir());
    if open.mode() & 0o777 != mode {
        let _ = file.set_permissions(fs::Permissions::from_mode(mode));
    }
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn share_as(_database: &Path, _path: &Path) -> io::Result<()> {
    Ok(())
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

/// Makes an empty file, unless there is one.
fn make(path: &Path) -> Result<()> {
    match private().create_new(true).open(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(cannot(path, e)),
    }
}

/// Checks an existing file. A missing file is fine if a store can be created, and so is another application's
/// database.
fn probe(path: &Path, create: bool) -> Result<()> {
    let none = |what| {
        Error::new(ErrorKind::Unavailable, format!("there is no store {what} {}", path.display()))
            .with_hint("check the path; without mode=rw, the store is created")
    };
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && create => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(none("at").with_source(e)),
        // A pipe would be waited for.
        Ok(meta) if !meta.is_file() => {
            let what = if meta.is_dir() { "a folder" } else { "no regular file" };
            return Err(Error::invalid(format!("could not open {}: it is {what}", path.display()))
                .with_hint("write the path of a file, such as jobs.db; it is made if it is missing"));
        }
        // Other problems are reported when the file is opened.
        _ => {}
    }
    let failed = |e| fault::error("open", path, e);
    let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    let is_store = schema::version(&conn).map_err(|e| without_log(path, e))? != 0;
    if is_store || create { Ok(()) } else { Err(none("in")) }
}

/// Makes the error for a log that cannot be read: its index beside the file is missing, and this user cannot create
/// it.
fn without_log(path: &Path, e: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode::{CannotOpen, ReadOnly};
    let is_missing = matches!(e.sqlite_error_code(), Some(CannotOpen | ReadOnly));
    let error = fault::error("open", path, e);
    if is_missing && !with_suffix(path, "-shm").exists() {
        return error.with_hint(
            "no process has this store open, and this user cannot create its -shm file: start a worker, or read a copy of the file",
        );
    }
    error
}

/// Returns the path without symbolic links, so that all processes use the same sidecar.
fn real_path(path: &Path) -> Result<PathBuf> {
    if let Ok(real) = path.canonicalize() {
        return Ok(real);
    }
    let Some(name) = path.file_name() else {
        return Err(Error::invalid(format!("{:?} names no file", path.display().to_string()))
            .with_hint("write sqlite:jobs.db; for a store without a file, memory:"));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(folder.canonicalize().map_err(|e| cannot(path, e))?.join(name))
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

pub(crate) fn cannot(path: &Path, e: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("could not open {}", path.display()))
        .with_hint("check that the folder exists and that this user may write there")
        .with_source(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sqlite_with_the_wal_reset_bug_is_refused() {
        let refused = check_version(3_050_004).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().starts_with("SQLite 3.50.4 can corrupt"), "{refused}");
        assert!(check_version(SQLITE_MIN).is_ok());
        assert!(check_version(rusqlite::version_number()).is_ok());
    }
}
