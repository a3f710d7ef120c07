//! The database file, and the setup of connections to it.
//!
//! It never opens a descriptor of its own on the database or its -shm: closing one would drop the locks that SQLite holds
//! for the whole process. Processes coordinate through a lock on a sidecar file (`file_lock`).

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
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
                connection::Conn,
                fault,
                file_lock::{Guard, Lock},
                log::{Hole, Log},
                names::Names,
                place, schema,
                users::Users,
            },
        },
    },
};

/// The first SQLite without the WAL-reset bug, which can corrupt a file with two connections.
const SQLITE_MIN: i32 = 3_051_003;

/// How long to wait for the lock of a foreign program. Other punctual processes wait at the sidecar.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long who opens the file waits for a foreign program, to write a log again that was left behind.
const MEND_WAIT: Duration = Duration::from_millis(100);

/// A database file that exists and is migrated.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) names: Arc<Names>,
    /// Whether a sync of the log failed since it was whole on the disk.
    pub(crate) hole: Arc<Hole>,
    cache_mib: u32,
    /// `None` if it was opened read-only, also in the next one.
    pub(crate) lock: Option<Lock>,
    users: Option<Users>,
    /// No sync of the log ends while a test holds it.
    #[cfg(test)]
    pub(crate) disk: Arc<std::sync::Mutex<()>>,
}

impl Database {
    /// Opens the file, creates it if requested, migrates it, and returns the connection that did so. In read-only
    /// mode it does none of this and returns no connection.
    pub(crate) fn open(path: &Path, options: &SqliteOptions) -> Result<(Self, Option<Conn>)> {
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

    fn try_open(path: &Path, options: &SqliteOptions) -> Result<(Self, Option<Conn>)> {
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
        let mut database = Self::new(path, Some(lock), options);
        let (conn, users) = {
            let _guard = database.lock()?;
            // Created under the lock, so that no other punctual has connections to it when this descriptor closes.
            if create {
                make(database.path())?;
            }
            let lock = with_suffix(database.path(), "-lock");
            share_as(database.path(), &lock).map_err(|e| cannot(&lock, e))?;
            let (users, is_first) = Users::join(&database.names)?;
            if !users.is_of_others() {
                let _ = database.hole.is_of_another();
            } else if !is_first {
                Users::check(&database.names)?;
            } else if database.names.has_frames() {
                // Nobody is left to tell of a sync that failed.
                database.hole.note();
            }
            let conn = database.set_up(durability).inspect_err(|error| {
                if fault::is_of_sync(error) {
                    database.hole.note();
                }
            })?;
            users.stay()?;
            (conn, users)
        };
        database.users = Some(users);
        Ok((database, Some(conn)))
    }

    /// Connects, and migrates the file. The caller holds the lock.
    fn set_up(&self, durability: Durability) -> Result<Conn> {
        let mut conn = self.connect("open")?;
        self.set_up_writer(&conn, durability)?;
        // Who only enqueues in transactions of its own has no other moment for it. Who only reads needs no whole log, and a writer
        // tries it again.
        conn.busy_timeout(MEND_WAIT).map_err(|e| self.error("open", e))?;
        if let Err(error) = self.mend_log(&conn, &mut self.log()) {
            tracing::debug!(target: "punctual", error = &error as &dyn std::error::Error, "could not write the log again");
        }
        conn.busy_timeout(BUSY_TIMEOUT).map_err(|e| self.error("open", e))?;
        schema::migrate(&mut conn, self.path())?;
        schema::identify(&conn, self.path())?;
        self.names.note(true);
        Ok(conn)
    }

    /// Writes the log again if a sync of it may have failed; returns whether that was so. The caller holds the lock.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails again, or has lost a part of the log.
    pub(crate) fn mend_log(&self, conn: &Connection, log: &mut Log) -> Result<bool> {
        if !self.hole.is_there() {
            return Ok(false);
        }
        let frames = log_pages(conn).map_err(|e| self.error("read from", e))?;
        // Programs that do not use the lock cannot write either.
        let _alone = rusqlite::Transaction::new_unchecked(conn, rusqlite::TransactionBehavior::Immediate)
            .map_err(|e| self.error("write to", e))?;
        let written = log.write_again(frames.unsigned_abs()).and_then(|()| self.hole.is_mended());
        written.map(|()| true).map_err(|e| self.not_synced().with_source(e))
    }

    /// Writes the database again into the log, if pages of it may have been lost. The caller holds the lock.
    ///
    /// # Errors
    /// Those of a compaction.
    pub(crate) fn mend_pages(&self, conn: &Connection) -> Result<()> {
        if !is_all_copied_again(conn) {
            tracing::warn!(target: "punctual", path = %self.path().display(),
                "the disk failed to sync the database, so it is written again, which can take long");
            conn.execute_batch("VACUUM").map_err(|e| self.error("write again", e))?;
        }
        self.hole.is_mended_in_database().map_err(|e| self.not_synced().with_source(e))
    }

    /// Copies the log into the database. The log is whole on the disk. `copy` does it; `held` is the lock, if the caller holds it.
    pub(crate) fn copy_log<T>(
        &self,
        conn: &Connection,
        held: Option<&Guard<'_>>,
        copy: impl FnOnce() -> rusqlite::Result<T>,
    ) -> Result<T> {
        let before = self.names.copied();
        copy().map_err(|e| {
            let error = fault::error("checkpoint", self.path(), e);
            if fault::is_of_sync(&error) {
                // With the lock, so that nobody who mends an older hole takes this one for mended.
                let _lock = held.is_none().then(|| self.lock());
                // The log is synced first: then nothing was written to the database. Times of files are coarse.
                let is_old = before.is_some_and(|at| at.elapsed().is_ok_and(|since| TIMES_MAX < since));
                if is_all_copied_again(conn) || is_old && self.names.copied() == before {
                    self.hole.note();
                } else {
                    self.hole.note_in_database();
                }
            }
            error
        })
    }

    /// Makes the error for what must be durable while the log has a hole.
    pub(crate) fn not_synced(&self) -> Error {
        Error::new(ErrorKind::Unavailable, format!("could not sync {} to the disk", self.path().display()))
            .with_hint("look at the disk; the call may be repeated")
    }

    /// Opens the file read-only: nothing is created beside it except what SQLite needs.
    fn look(path: &Path, options: &SqliteOptions) -> Result<Self> {
        probe(path, false)?;
        let database = Self::new(real_path(path)?, None, options);
        schema::check_as_it_is(&*database.reader()?, database.path())?;
        database.names.note(false);
        Ok(database)
    }

    fn new(path: PathBuf, lock: Option<Lock>, options: &SqliteOptions) -> Self {
        let hole = Arc::new(Hole::told_by(with_suffix(&path, "-lock")));
        Self {
            names: Arc::new(Names::of(path)),
            hole,
            cache_mib: options.cache_mib,
            lock,
            users: None,
            #[cfg(test)]
            disk: Arc::default(),
        }
    }

    /// Returns its real path.
    pub(crate) fn path(&self) -> &Path {
        &self.names.database
    }

    /// Takes the right to write among punctual processes, until the guard is dropped.
    pub(crate) fn lock(&self) -> Result<Guard<'_>> {
        self.lock.as_ref().ok_or_else(|| self.only_looked_at())?.take()
    }

    /// Opens a second way to write, for a second thread: a connection, and a lock of its own. A lock belongs to an open
    /// file, so two threads with one would not exclude each other. The connection keeps few pages.
    pub(crate) fn second_writer(&self) -> Result<(Conn, Lock)> {
        let lock = Lock::open(with_suffix(self.path(), "-lock"))?;
        let conn = self.connect("open")?;
        self.set_up_writer(&conn, Durability::Fast)?;
        conn.pragma_update(None, "cache_size", -SECOND_CACHE_KIB).map_err(|e| self.error("open", e))?;
        Ok((conn, lock))
    }

    /// Returns the write-ahead log, for syncs.
    pub(crate) fn log(&self) -> Log {
        let log = Log::new(self.names.log.clone());
        #[cfg(test)]
        let log = log.on(Arc::clone(&self.disk));
        log
    }

    /// Opens a connection that only reads.
    pub(crate) fn reader(&self) -> Result<Conn> {
        let conn = self.connect("open")?;
        conn.pragma_update(None, "query_only", true).map_err(|e| self.error("open", e))?;
        Ok(conn)
    }

    /// Makes the error for a write to a read-only store.
    pub(crate) fn only_looked_at(&self) -> Error {
        let path = self.path().display();
        Error::new(ErrorKind::Unsupported, format!("{path} was opened for reading only; nothing was written"))
            .with_hint("open it without mode=ro, as a user who may write the file and its folder")
    }

    /// Returns the sizes of the database and its log, in bytes.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
        (size(self.path()), size(&self.names.log))
    }

    /// Refuses to use files that do not have their names any more.
    pub(crate) fn check_in_place(&self) -> Result<()> {
        self.names.check_in_place()
    }

    /// Refuses to copy the log elsewhere while it, or the database, has a hole on the disk.
    pub(crate) fn check_log(&self) -> Result<()> {
        if !self.hole.is_there() && !self.hole.is_in_database() {
            return Ok(());
        }
        let text = format!(
            "a sync of {} failed, or a program that used it was killed, and the log is not written again yet",
            self.path().display()
        );
        Err(Error::new(ErrorKind::Unavailable, text)
            .with_hint("the next write to the store does it; if that fails, look at the disk"))
    }

    /// Returns the space that is given up when the disk is full.
    pub(crate) fn ballast(&self) -> Ballast {
        Ballast::of(self.path())
    }

    /// Makes the error `could not <what> <path>`. If it was a sync that failed, that is noted.
    pub(crate) fn error(&self, what: &str, e: rusqlite::Error) -> Error {
        let error = fault::error(what, self.path(), e);
        if fault::is_of_sync(&error) {
            self.hole.note();
        }
        error
    }

    fn connect(&self, what: &str) -> Result<Conn> {
        // Otherwise SQLite makes another log where the name of one has gone.
        self.check_in_place()?;
        let access = match self.lock {
            Some(_) => OpenFlags::SQLITE_OPEN_READ_WRITE,
            None => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(self.path(), flags).map_err(|e| self.error(what, e))?;
        let set_up = || {
            conn.busy_timeout(BUSY_TIMEOUT)?;
            conn.set_prepared_statement_cache_capacity(256);
            // Makes plans independent of bound values. Otherwise a range is planned anew at each use (measured: 60 %
            // slower).
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            conn.pragma_update(None, "cache_size", -1_024 * i64::from(self.cache_mib))
        };
        set_up().map_err(|e| self.error(what, e))?;
        Ok(Conn::new(conn, Arc::clone(&self.names), Arc::clone(&self.hole)))
    }

    fn set_up_writer(&self, conn: &Connection, durability: Durability) -> Result<()> {
        let failed = |e| self.error("open", e);
        if conn.is_readonly("main").map_err(failed)? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("could not open {} for writing", self.path().display()),
            )
            .with_hint("make the file and its folder writable for this user"));
        }
        // To its end, since that it could not be written is said there.
        let switch = || {
            let mut switch = conn.prepare("PRAGMA journal_mode = WAL")?;
            switch.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()
        };
        let mode = switch().map_err(failed)?.concat();
        if mode != "wal" {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} cannot use a write-ahead log (journal_mode is {mode})", self.path().display()),
            )
            .with_hint("put the file on a local disk; network file systems cannot share a log"));
        }
        set_synchronous(conn, durability).map_err(failed)?;
        // The writer does checkpoints after it has answered.
        conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
        conn.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES).map_err(failed)
    }
}

/// How coarse the times of files can be.
const TIMES_MAX: Duration = Duration::from_secs(3);

/// A file up to this size is checked within seconds.
pub(crate) const CHECKED_BYTES_MAX: u64 = 256 << 20;

/// The size to which the log is cut when it restarts.
pub(crate) const WAL_KEPT_BYTES: i64 = 64 << 20;

/// The page cache of the second writer's connection, in KiB: the pages of some leases.
const SECOND_CACHE_KIB: i64 = 1_024;

/// Returns whether SQLite copies all pages of the log with the next checkpoint: whether none was copied for good.
fn is_all_copied_again(conn: &Connection) -> bool {
    conn.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get::<_, i64>(2))
        .is_ok_and(|copied| copied == 0)
}

/// Returns how many pages the log holds.
pub(crate) fn log_pages(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?.query_row([], |row| row.get(1))
}

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
    Users::check(&Names::of(real_path(path)?))?;
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
        return error.with_hint(fault::without_a_descriptor().unwrap_or(
            "no process has this store open, and this user cannot create its -shm file: start a worker, or read a copy of the file",
        ));
    }
    error
}

/// Returns the path without symbolic links, so that all processes use the same sidecar.
pub(crate) fn real_path(path: &Path) -> Result<PathBuf> {
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
        .with_hint(fault::without_descriptors(&e).unwrap_or(fault::UNOPENED))
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
