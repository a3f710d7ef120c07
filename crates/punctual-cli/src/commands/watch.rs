//! `--watch` and `top`: repeat a command until Ctrl-C.

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
    /// Repeat the command every second, until Ctrl-C.
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
    let clears = io::stdout().is_terminal();
    repeat(session, None, async |session| {
        if clears {
            session.out.write_all(b"\x1b[H\x1b[2J")?;
        }
        once(session).await
    })
    .await
}

/// Looks every second: so often, or until Ctrl-C.
pub(super) async fn repeat(
    session: &mut Session,
    rounds: Option<u64>,
    mut once: impl AsyncFnMut(&mut Session) -> Result,
) -> Result {
    let mut ticks = interval(EVERY);
    // A look that takes its time is not made up for by hasty ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut stop, mut left) = (pin!(signal::ctrl_c()), rounds.unwrap_or(u64::MAX));
    while 0 < left {
        left -= 1;
        let round = async {
            ticks.tick().await;
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
    Ok(())
}
