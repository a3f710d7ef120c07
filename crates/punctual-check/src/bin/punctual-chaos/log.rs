//! The log of writes that a server of Redis keeps, and what a power cut does to it: a kill leaves all that was written, a
//! power cut only what was synced.

use std::{
    collections::VecDeque,
    fs::{self, OpenOptions},
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

/// How much of the log a power cut takes where it is synced once a second.
const UNSYNCED: Duration = Duration::from_secs(1);

/// How long the log was when.
#[derive(Debug)]
pub(crate) struct Log {
    file: PathBuf,
    lengths: VecDeque<(Instant, u64)>,
}

impl Log {
    /// The log in this file.
    pub(crate) fn of(file: PathBuf) -> Self {
        Self { file, lengths: VecDeque::new() }
    }

    /// Notes how long it is now.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        let now = Instant::now();
        self.lengths.push_back((now, fs::metadata(&self.file)?.len()));
        while self.lengths.get(1).is_some_and(|(then, _)| UNSYNCED <= now - *then) {
            self.lengths.pop_front();
        }
        Ok(())
    }

    /// Cuts off what a server that is gone had not synced; answers how many bytes.
    pub(crate) fn cut(&mut self) -> io::Result<u64> {
        let file = OpenOptions::new().write(true).open(&self.file)?;
        let length = file.metadata()?.len();
        let synced = self.lengths.front().map_or(length, |(_, synced)| *synced);
        self.lengths.clear();
        file.set_len(synced)?;
        Ok(length - synced)
    }
}
