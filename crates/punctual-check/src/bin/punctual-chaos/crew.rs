//! Worker processes of one kind, of which some are killed and others take their places.

use std::{fs, io, path::PathBuf};

use crate::{drill::Outcome, process::Process};

pub(crate) struct Crew {
    /// What the child is told to be.
    role: &'static str,
    url: String,
    dir: PathBuf,
    args: Vec<String>,
    size: usize,
    pub(crate) members: Vec<Process>,
    /// So far, those that were killed included.
    started: u32,
}

impl Crew {
    /// Starts so many.
    pub(crate) fn start(
        role: &'static str,
        url: &str,
        dir: PathBuf,
        args: Vec<String>,
        size: usize,
    ) -> io::Result<Self> {
        let url = url.to_owned();
        let mut crew = Self { role, url, dir, args, size, members: Vec::new(), started: 0 };
        crew.fill_up()?;
        Ok(crew)
    }

    fn fill_up(&mut self) -> io::Result<()> {
        while self.members.len() < self.size {
            self.started += 1;
            let name = format!("worker-{}", self.started);
            self.members.push(Process::start(self.role, &self.url, &self.dir, name, &self.args)?);
        }
        Ok(())
    }

    /// Kills one, and starts another.
    pub(crate) fn kill(&mut self, at: usize) -> io::Result<()> {
        self.members.swap_remove(at).kill()?;
        self.fill_up()
    }

    /// Ends all that are left.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        self.members.iter_mut().try_for_each(Process::stop)
    }

    /// What all of them noted, line by line.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for n in 1..=self.started {
            // One that was killed before it began has none.
            let notes = fs::read_to_string(self.dir.join(format!("worker-{n}.ndjson"))).unwrap_or_default();
            lines.extend(notes.lines().map(str::to_owned));
        }
        lines
    }
}
