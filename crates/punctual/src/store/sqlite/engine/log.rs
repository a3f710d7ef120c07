//! The write-ahead log on the disk.
//!
//! A commit writes to the log and does not wait for the disk. Who must wait does so here, after the write lock was
//! released, so a slow disk holds up only the callers whose answers must survive a power cut.
//!
//! It has a descriptor of its own on the log. SQLite locks the database and its -shm, and never the -wal, so no lock is
//! dropped when this one closes.

#[cfg(test)]
use std::sync::{Arc, Mutex, PoisonError};
use std::{
    fs::{self, File},
    io,
    path::PathBuf,
};

use crate::store::sqlite::engine::file::{Identity, identity};

/// The log of a database.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    /// The file that was at the path when it was opened.
    file: Option<(Option<Identity>, File)>,
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
        let there = identity(&self.path);
        let file = match self.file.take() {
            Some((opened, file)) if opened == there => file,
            // SQLite made another one.
            _ => fs::OpenOptions::new().read(true).write(true).open(&self.path)?,
        };
        self.file.insert((there, file)).1.sync_data()
    }
}
