//! The ballast: space that is given up when the disk is full, so that jobs can still be taken, run and settled (S17).
//!
//! ```text
//! whole ──the disk is full──► given up ──an enqueue finds room──► whole
//! ```
//!
//! It is a file beside the database, because its space is free as soon as it is removed. While it is given up, nothing is
//! enqueued, so new jobs do not use the space that old ones need to end.

use std::{
    fs::{self, File},
    io::{self, Seek, Write},
    path::{Path, PathBuf},
};

use crate::store::sqlite::engine::file::{private, share_as, with_suffix};

/// The ballast grows by this much at once, in bytes. It is this much larger than the log: the log must fit into the
/// database before it can be written again from its beginning.
const STEP_BYTES: u64 = 1 << 20;
/// The largest ballast, in bytes: the log is cut to 64 MiB.
const BALLAST_BYTES_MAX: u64 = 65 << 20;

/// The ballast of a database.
#[derive(Debug)]
pub(crate) struct Ballast {
    path: PathBuf,
    database: PathBuf,
}

impl Ballast {
    pub(crate) fn of(database: &Path) -> Self {
        Self { path: with_suffix(database, "-ballast"), database: database.to_owned() }
    }

    /// Returns how large it must be for a log of this size, in bytes.
    pub(crate) fn wanted(log_bytes: u64) -> u64 {
        ((log_bytes.div_ceil(STEP_BYTES) + 1) * STEP_BYTES).min(BALLAST_BYTES_MAX)
    }

    /// Makes it as large as it must be.
    ///
    /// # Errors
    /// Those of the disk. It is then as large as before.
    pub(crate) fn keep(&self, log_bytes: u64) -> io::Result<()> {
        let (has, wanted) = (self.bytes(), Self::wanted(log_bytes));
        if wanted <= has {
            return Ok(());
        }
        let mut file = private().create(true).truncate(false).open(&self.path)?;
        let grown = fill(&mut file, has, wanted);
        if grown.is_err() {
            // A small rest is no use to anybody.
            let _ = if has == 0 { fs::remove_file(&self.path) } else { file.set_len(has) };
        } else if has == 0 {
            // Users who cannot give it away keep it: it has no contents.
            let _ = share_as(&self.database, &self.path);
        }
        grown
    }

    /// Gives its space back to the disk; returns whether there was any.
    pub(crate) fn give_up(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }

    /// Makes the smallest one once more, and removes it: whether the disk has so much room beside the one there is.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn try_again(&self) -> io::Result<()> {
        let again = Self { path: with_suffix(&self.database, "-room"), database: self.database.clone() };
        // A process that was killed may have left it.
        again.give_up();
        let made = again.keep(0);
        again.give_up();
        made
    }

    fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |meta| meta.len())
    }
}

/// Returns whether a write failed for want of space.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes bytes from `from` to `to`: no zeros, which some file systems do not store.
fn fill(file: &mut File, from: u64, to: u64) -> io::Result<()> {
    const CHUNK: usize = 64 << 10;
    let mut chunk = vec![0_u8; CHUNK];
    let mut random = fastrand::Rng::with_seed(from);
    file.seek(io::SeekFrom::Start(from))?;
    let mut at = from;
    while at < to {
        random.fill(&mut chunk);
        let n = (to - at).min(CHUNK as u64) as usize;
        file.write_all(&chunk[..n])?;
        at += n as u64;
    }
    Ok(())
}
