//! The write-ahead log on the disk.
//!
//! A commit writes to the log and does not wait for the disk. Who must wait does so here, after the write lock was
//! released, so a slow disk holds up only the callers whose answers must survive a power cut.
//!
//! It has a descriptor of its own on the log. SQLite locks the database and its -shm, and never the -wal, so no lock is
//! dropped when this one closes.
//!
//! # When a sync fails
//!
//! The system drops what it could not write: it is not written by a later sync, although that one succeeds, and it can still be read. The
//! log on the disk then has a *hole*. After a power cut, whatever is behind it is lost. Nor may it be copied into the database: the
//! recovered part before the hole would be older than the database, and would be laid over it.
//!
//! So the log is written again from its beginning, as it is read, and synced. What is read is compared with the checksums of its frames,
//! since some file systems forget what they could not write. Until this has worked, nothing is answered as durable, and nothing is copied
//! into the database. All processes know of the hole by the length of the sidecar `<database>-lock`, whichever of them met it.
//!
//! A sync of the database can fail, too, after pages were copied from the log. SQLite copies those of that checkpoint again. It does not copy
//! again those of a checkpoint before that was not synced, because somebody wrote meanwhile. They are safe as long as the log is not begun
//! anew. So before the next checkpoint, the database is written again into the log, as a compaction does it (`VACUUM`).

#[cfg(test)]
use std::sync::{Arc, Mutex, PoisonError};
use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

#[cfg(not(unix))]
use std::io::{Read, Seek, SeekFrom, Write};

/// The log of a database.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    /// Plays a disk that stands still: no sync ends while a test holds it.
    #[cfg(test)]
    disk: Arc<Mutex<()>>,
}

impl Log {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            #[cfg(test)]
            disk: Arc::default(),
        }
    }

    /// Lets it be on the disk that a test plays.
    #[cfg(test)]
    pub(crate) fn on(self, disk: Arc<Mutex<()>>) -> Self {
        Self { disk, ..self }
    }

    /// Returns when everything that was committed before the call is on the disk, by whichever process.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        #[cfg(test)]
        drop(self.disk.lock().unwrap_or_else(PoisonError::into_inner));
        self.file()?.sync_data()
    }

    /// Opens the log, once: a descriptor that was opened before a sync failed tells of it, whichever process synced. SQLite makes no other
    /// log while a connection is open.
    pub(crate) fn file(&mut self) -> io::Result<&File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new().read(true).write(true).open(&self.path)?,
        };
        Ok(self.file.insert(file))
    }

    /// Writes the frames again, at least this many, and syncs them. Nobody else may write meanwhile.
    ///
    /// # Errors
    /// Those of the disk. `InvalidData` if the file does not hold these frames any more.
    pub(crate) fn write_again(&mut self, frames: u64) -> io::Result<()> {
        let file = self.file()?;
        let written = || {
            if 0 < frames {
                write_frames_again(file, frames)?;
            }
            file.sync_data()
        };
        // The first one can tell of a failure that was before.
        written().or_else(|_| written())
    }
}

/// Reads a log, checks its frames, and writes each again at its place, up to the last one of an unbroken chain.
fn write_frames_again(file: &File, frames: u64) -> io::Result<()> {
    let mut head = [0; Frames::HEAD_BYTES];
    read_at(file, 0, &mut head)?;
    let mut chain = Frames::begin(&head).ok_or_else(lost)?;
    write_at(file, 0, &head)?;
    let mut frame = vec![0; chain.frame_bytes()];
    for n in 0.. {
        let at = head.len() as u64 + n * frame.len() as u64;
        match read_at(file, at, &mut frame) {
            Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => return Err(e),
            Ok(()) if chain.continues(&frame) => write_at(file, at, &frame)?,
            _ if n < frames => return Err(lost()),
            _ => break,
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_at(file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(unix)]
fn write_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}

#[cfg(not(unix))]
fn write_at(mut file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}

fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a part of the log that could not be synced was lost")
}

/// The checksums of a log, frame after frame: "WAL File Format" of <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>. SQLite
/// itself checks them only when it recovers a log.
struct Frames {
    is_big_endian: bool,
    page_bytes: usize,
    salts: [u8; 8],
    sum: (u32, u32),
}

impl Frames {
    const HEAD_BYTES: usize = 32;
    const FRAME_HEAD_BYTES: usize = 24;
    /// What the head of a log begins with. The last bit is set if its checksums read big-endian words.
    const MAGIC: u32 = 0x377f_0682;

    /// Begins with the head of a log; `None` if it is none.
    fn begin(head: &[u8; Self::HEAD_BYTES]) -> Option<Self> {
        let (magic, page_bytes) = (big(head, 0), big(head, 8) as usize);
        if magic & !1 != Self::MAGIC || !page_bytes.is_power_of_two() || !(512..=65_536).contains(&page_bytes)
        {
            return None;
        }
        let salts = head[16..24].try_into().ok()?;
        let mut frames = Self { is_big_endian: magic & 1 == 1, page_bytes, salts, sum: (0, 0) };
        frames.add(&head[..24]);
        (frames.sum == (big(head, 24), big(head, 28))).then_some(frames)
    }

    const fn frame_bytes(&self) -> usize {
        Self::FRAME_HEAD_BYTES + self.page_bytes
    }

    /// Returns whether this is the next frame.
    fn continues(&mut self, frame: &[u8]) -> bool {
        let (head, page) = frame.split_at(Self::FRAME_HEAD_BYTES);
        self.add(&head[..8]);
        self.add(page);
        head[8..16] == self.salts && self.sum == (big(head, 16), big(head, 20))
    }

    fn add(&mut self, bytes: &[u8]) {
        let word = if self.is_big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
        let (mut a, mut b) = self.sum;
        for &[first, second] in bytes.as_chunks::<4>().0.as_chunks::<2>().0 {
            a = a.wrapping_add(word(first)).wrapping_add(b);
            b = b.wrapping_add(word(second)).wrapping_add(a);
        }
        self.sum = (a, b);
    }
}

/// Reads a big-endian number.
fn big(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |n, byte| n << 8 | u32::from(*byte))
}

/// What a failed sync may have lost. Told to all processes by the length of a sidecar.
#[derive(Debug)]
pub(crate) struct Hole {
    sidecar: PathBuf,
    /// If the sidecar could not be written.
    is_here: AtomicU64,
}

/// The length of the sidecar while the log may have a hole.
const LOG_HOLE: u64 = 1;
/// While pages of the database may have one, too, which were copied from the log.
const DATABASE_HOLE: u64 = 2;

impl Hole {
    pub(crate) const fn told_by(sidecar: PathBuf) -> Self {
        Self { sidecar, is_here: AtomicU64::new(0) }
    }

    fn length(&self) -> u64 {
        let told = fs::metadata(&self.sidecar).map_or(0, |meta| meta.len());
        told | self.is_here.load(Ordering::Relaxed)
    }

    /// Returns whether the log must be written again.
    pub(crate) fn is_there(&self) -> bool {
        self.length() % 2 == LOG_HOLE
    }

    /// Returns whether the database must be written again before the log may begin anew.
    pub(crate) fn is_in_database(&self) -> bool {
        DATABASE_HOLE <= self.length()
    }

    /// Notes that a sync of the log failed. Whoever changes what is told holds the lock of the database.
    pub(crate) fn note(&self) {
        self.tell(self.length() | LOG_HOLE);
    }

    /// Notes that a sync failed, and that it may have been one of the database.
    pub(crate) fn note_in_database(&self) {
        self.tell(DATABASE_HOLE | LOG_HOLE);
    }

    fn tell(&self, length: u64) {
        if resize(&self.sidecar, length).is_err() {
            self.is_here.store(length, Ordering::Relaxed);
        }
    }

    /// Notes that the log was written again.
    pub(crate) fn is_mended(&self) -> io::Result<()> {
        self.is_only(self.length() & DATABASE_HOLE)
    }

    /// Notes that all pages of the database are in the log, which may have a hole itself.
    pub(crate) fn is_mended_in_database(&self) -> io::Result<()> {
        self.is_only(self.length() & LOG_HOLE)
    }

    /// Notes that another database is here, of which nothing was lost.
    pub(crate) fn is_of_another(&self) -> io::Result<()> {
        self.is_only(0)
    }

    fn is_only(&self, length: u64) -> io::Result<()> {
        resize(&self.sidecar, length)?;
        self.is_here.store(length, Ordering::Relaxed);
        Ok(())
    }
}

fn resize(path: &Path, bytes: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(bytes)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// A log of some frames, and how many there are.
    fn log(folder: &Path, page_bytes: u32) -> (Connection, PathBuf, u64) {
        let path = folder.join(format!("{page_bytes}.db"));
        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "page_size", page_bytes).unwrap();
        let _: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).unwrap();
        conn.execute_batch("CREATE TABLE t (a)").unwrap();
        for n in 0..20 {
            conn.execute("INSERT INTO t VALUES (zeroblob(?1))", [n * 500]).unwrap();
        }
        let frames: i64 = conn.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1)).unwrap();
        (conn, path.with_extension("db-wal"), frames.unsigned_abs())
    }

    #[test]
    fn a_log_that_is_written_again_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        for page_bytes in [512, 4_096, 65_536] {
            let (_conn, path, frames) = log(folder.path(), page_bytes);
            assert!(20 < frames);
            let before = fs::read(&path).unwrap();
            Log::new(path.clone()).write_again(frames).unwrap();
            assert!(fs::read(&path).unwrap() == before, "{page_bytes}");
            // A log that was begun anew has no frames yet.
            Log::new(path.clone()).write_again(0).unwrap();
            assert!(fs::read(&path).unwrap() == before, "{page_bytes}");
        }
    }

    #[test]
    fn what_was_lost_of_a_log_is_not_written_as_if_it_were_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (_conn, path, frames) = log(folder.path(), 4_096);
        let whole = fs::read(&path).unwrap();
        for (what, at) in [("head", 9), ("salt", 17), ("frame's head", 35), ("page", 3 * 4_120 + 500)] {
            let mut torn = whole.clone();
            torn[at] ^= 1;
            fs::write(&path, &torn).unwrap();
            let refused = Log::new(path.clone()).write_again(frames).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{what}");
        }
        fs::write(&path, &whole[..whole.len() - 10_000]).unwrap();
        let refused = Log::new(path.clone()).write_again(frames).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_hole_is_told_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let sidecar = folder.path().join("jobs.db-lock");
        fs::write(&sidecar, "").unwrap();
        let (one, other) = (Hole::told_by(sidecar.clone()), Hole::told_by(sidecar.clone()));
        one.note();
        assert!(one.is_there() && other.is_there() && !other.is_in_database());
        other.is_mended().unwrap();
        assert!(!one.is_there() && !other.is_there());
        one.note_in_database();
        assert!(other.is_there() && other.is_in_database());
        other.is_mended().unwrap();
        assert!(!one.is_there() && one.is_in_database());
        one.note();
        assert!(one.is_there() && one.is_in_database());
        other.is_mended_in_database().unwrap();
        assert!(one.is_there() && !one.is_in_database());
        other.is_mended().unwrap();
        assert!(!one.is_there() && !one.is_in_database());
        fs::remove_file(sidecar).unwrap();
        one.note();
        assert!(one.is_there());
    }
}
