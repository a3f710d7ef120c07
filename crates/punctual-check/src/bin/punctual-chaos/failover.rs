//! The drill in which the server that has the jobs is killed for good and a replica takes over, where there is a cluster in
//! the midst of moving the jobs between its servers; under workers and producers that must go on, and under the demo.

use std::{ops::Range, time::Duration};

use punctual_check::event::What;

use crate::{
    drill::{Drill, Outcome},
    process::Process,
};

/// Before each time that the servers change, in milliseconds: the demo's jobs are due from 2 s to 12 s after its start.
const BETWEEN_MS: Range<u64> = 3_000..5_000;

impl Drill<'_> {
    /// Streams jobs in for as long as the nemesis is at it.
    pub(crate) async fn failover(&mut self) -> Outcome<()> {
        let kills = self.profile.kills;
        let over = Duration::from_millis(BETWEEN_MS.end + 2_000) * kills;
        let mut demo = match &self.profile.demo {
            // Beside the drill's own jobs, not among them.
            Some(program) => {
                let url = self.place.url.replace("prefix=t", "prefix=t-demo-");
                Some(Process::run(program, &["demo", "--store", &url])?)
            }
            None => None,
        };
        self.spawn_workers()?;
        for first in 1..=self.profile.producers {
            self.spawn_stream("stream", first, over)?;
        }
        for _ in 0..kills {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(BETWEEN_MS))).await;
            self.place.servers.as_mut().ok_or("there is nobody to take over")?.reshard()?;
            self.fail_over()?;
        }
        self.end_of("stream")?;
        demo.as_mut().map_or(Ok(()), Process::wait)
    }

    /// Kills a primary for good, and comes back when a replica has taken over.
    pub(crate) fn fail_over(&mut self) -> Outcome<()> {
        let servers = self.place.servers.as_mut().ok_or("there is nobody to take over")?;
        let since = servers.fail_over()?;
        self.recorder.note(What::ServerKilled { since });
        self.expect_alive()
    }
}
