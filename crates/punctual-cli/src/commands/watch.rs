//! `--watch`: the same look again and again, until Ctrl-C.

use std::{
    io::{self, IsTerminal as _, Write as _},
    pin::pin,
    time::Duration,
};

use tokio::{
    signal,
    time::{MissedTickBehavior, interval},
};

use super::Session;
use crate::errors::{Failure, INTERRUPTED, Result};

/// Time between two looks, at least.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Watch {
    /// Show it again every second, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
}

/// Looks once, or every second. A terminal is cleared before each look; elsewhere one answer follows the other.
pub(super) async fn look(
    session: &mut Session,
    Watch { watch }: Watch,
    mut once: impl AsyncFnMut(&mut Session) -> Result,
) -> Result {
    if !watch {
        return once(session).await;
    }
    let mut ticks = interval(EVERY);
    // A look that takes its time is not made up for by hasty ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut stop, clears) = (pin!(signal::ctrl_c()), io::stdout().is_terminal());
    loop {
        let round = async {
            ticks.tick().await;
            if clears {
                session.out.write_all(b"\x1b[H\x1b[2J")?;
            }
            once(session).await?;
            session.out.flush()?;
            Result::Ok(())
        };
        tokio::select! {
            biased;
            stopped = &mut stop => {
                stopped?;
                return Err(Failure::Silent(INTERRUPTED));
            }
            done = round => done?,
        }
    }
}
