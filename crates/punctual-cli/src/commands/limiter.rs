//! `punctual limit …`: checks rate limiters, for scripts. The exit code is the answer.

use std::{io::Write as _, time::Duration};

use punctual::{
    job::parse_duration,
    toolkit::{Allowance, RateLimiter},
};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::json,
    times::span,
};

/// The exit code of a refused call: that of a conflict.
const REFUSED: u8 = crate::errors::Exit::Conflict as u8;

const HELP: &str = "\
The exit code is 0 if the call is allowed, and 4 if it is refused. A limiter is created by its first check. All callers of \
one limiter should use the same --max and --per.

Examples:
  punctual limit check login ana --max 5 --per 1m && try-to-log-in ana
  punctual limit check api 10.0.0.7 --max 100 --per 1s --gcra 10";

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  punctual limit check login ana --max 5 --per 1m
  punctual limit check api 10.0.0.7 --max 100 --per 1s --gcra 10")]
pub(crate) enum Limiter {
    /// Check whether a call is allowed, and count it if it is.
    #[command(after_help = HELP)]
    Check(Check),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// Name of the limiter.
    name: String,
    /// Key that is counted separately, such as a user or an address.
    key: String,
    /// Number of calls that are allowed within --per.
    #[arg(long, value_name = "N")]
    max: u32,
    /// Period of --max, as 1s or 1m.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    per: Duration,
    /// Number of calls that this one counts as (default: 1).
    #[arg(long, default_value = "1", hide_default_value = true, value_name = "N")]
    cost: u32,
    /// Count refused calls, too: a caller that keeps asking stays refused.
    #[arg(long, conflicts_with = "gcra")]
    count_refused: bool,
    /// Spread allowed calls evenly (GCRA), with at most BURST at once (default: --max).
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
