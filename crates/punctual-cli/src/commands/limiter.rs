//! `punctual limit …`: rate limiters, for scripts. Whether something may be done is the exit code, too.

use std::{io::Write as _, time::Duration};

use punctual::{Allowance, RateLimiter, parse_duration};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::json,
    times::span,
};

/// The exit code of what is refused: of a conflict.
const REFUSED: u8 = 4;

const HELP: &str = "Exits with 0 if it may be done, which was counted, and with 4 if it may not. A limiter is known by its name; \
whoever asks says by which limit, and all should say the same.\n\n  punctual limit check login ana --max 5 --per 1m && try-to-log-in ana";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Limiter {
    /// Ask whether something may be done, and count it if it may.
    #[command(after_help = HELP)]
    Check(Check),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The limiter.
    name: String,
    /// Whom or what it counts apart: a user, say.
    key: String,
    /// So many may pass …
    #[arg(long, value_name = "N")]
    max: u32,
    /// … in this time.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    per: Duration,
    /// What it counts as.
    #[arg(long, default_value = "1", value_name = "N")]
    cost: u32,
    /// Count what is refused, too.
    #[arg(long, conflicts_with = "gcra")]
    count_refused: bool,
    /// Let them pass evenly (GCRA), so many at once: --max of them unless said otherwise.
    #[arg(long, num_args = 0..=1, value_name = "BURST")]
    #[expect(clippy::option_option, reason = "the option, and its value")]
    gcra: Option<Option<u32>>,
}

/// An answer as JSON.
#[derive(Serialize)]
struct View {
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

pub(crate) async fn run(session: &mut Session, Limiter::Check(check): &Limiter) -> Result {
    let said = check.limiter(session).check(&check.key, check.cost).await?;
    let wait = match said {
        Allowance::Allowed => None,
        Allowance::RetryAfter(wait) => Some(wait),
    };
    let out = &mut session.out;
    if session.format.is_json() {
        let retry_after_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        json(out, &View { allowed: wait.is_none(), retry_after_ms })?;
    } else if let Some(wait) = wait {
        writeln!(out, "refused  retry in {}", span(wait))?;
    } else {
        writeln!(out, "allowed")?;
    }
    out.flush()?;
    if said.is_allowed() { Ok(()) } else { Err(Failure::Silent(REFUSED)) }
}

impl Check {
    fn limiter(&self, session: &Session) -> RateLimiter {
        let limiter = session.client.rate_limiter(&self.name, self.max, self.per);
        match self.gcra {
            Some(burst) => limiter.evenly(burst.unwrap_or(self.max)),
            None if self.count_refused => limiter.count_refused(),
            None => limiter,
        }
    }
}
