//! The drill in which the server itself is killed and comes back on the same files, under workers and producers that must
//! go on.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use punctual_check::{event::What, monotonic_ns};

use crate::{
    drill::{Drill, Outcome},
    log::Log,
    place::{Fsync, Wanted},
};

/// From one kill to the next, in milliseconds.
const BETWEEN_KILLS_MS: Range<u64> = 500..2_000;
/// The same where answers may be lost: what is older than the last 2 s before a kill is judged as ever, so there must be
/// such.
const BETWEEN_KILLS_THAT_UNDO_MS: Range<u64> = 2_500..4_500;
/// How long the server is away, in milliseconds.
const AWAY_MS: Range<u64> = 0..500;

/// Between two looks at the server's log.
const LOOK: Duration = Duration::from_millis(50);

impl Drill<'_> {
    /// Streams jobs in for as long as the nemesis is at it.
    pub(crate) async fn server(&mut self) -> Outcome<()> {
        let kills = self.profile.kills;
        let between_ms = match self.profile.place {
            Wanted::Server(Fsync::EverySec) => BETWEEN_KILLS_THAT_UNDO_MS,
            _ => BETWEEN_KILLS_MS,
        };
        let over = Duration::from_millis(u64::midpoint(between_ms.start, between_ms.end)) * kills;
        self.spawn_workers()?;
        for first in 1..=self.profile.producers {
            self.spawn_stream("stream", first, over)?;
        }
        let mut cut = 0;
        for _ in 0..kills {
            let until = Instant::now() + Duration::from_millis(self.rng.u64(between_ms.clone()));
            let server = self.place.server.as_ref().ok_or("there is no server to kill")?;
            let mut log = Log::of(server.log().ok_or("the server keeps no log")?);
            while Instant::now() < until {
                log.look()?;
                tokio::time::sleep(LOOK).await;
            }
            cut += self.restart_the_server(self.profile.cuts_power.then_some(&mut log)).await?;
        }
        if self.profile.cuts_power {
            eprintln!("{cut} bytes of the server's log were gone with the power");
            if cut == 0 {
                return Err("no power cut took anything: nothing is shown".into());
            }
        }
        self.end_of("stream")
    }

    /// Kills the server and starts it again on the same files. With its log, the kill is a power cut: answers how many bytes of
    /// the log are gone.
    pub(crate) async fn restart_the_server(&mut self, log: Option<&mut Log>) -> Outcome<u64> {
        let server = self.place.server.as_mut().ok_or("there is no server to kill")?;
        let since = monotonic_ns();
        server.kill();
        let cut = log.map_or(Ok(0), Log::cut)?;
        self.recorder.note(What::ServerKilled { since });
        tokio::time::sleep(Duration::from_millis(self.rng.u64(AWAY_MS))).await;
        server.restart();
        self.expect_alive()?;
        Ok(cut)
    }
}
