//! `punctual take`: an at-most-once pop. From the answer on the jobs exist with whoever reads our output.

use std::{io::Write as _, time::Duration};

use punctual::{limits::BATCH_MAX, parse_duration};

use super::{Session, ls};
use crate::{errors::Result, output::counted};

#[derive(Debug, clap::Args)]
pub(crate) struct Take {
    /// From where.
    #[arg(short, long, default_value = "default")]
    queue: String,
    /// At most this many.
    #[arg(short, default_value_t = 1)]
    n: usize,
    /// Only jobs that have been due for this long.
    #[arg(long, default_value = "0s", value_parser = parse_duration, value_name = "DURATION")]
    older_than: Duration,
}

pub(crate) async fn run(session: &mut Session, args: &Take) -> Result {
    let (mut left, mut list) = (args.n, ls::Printer::new(session)?);
    while 0 < left {
        let jobs = session.client.take_older(&args.queue, left.min(BATCH_MAX), args.older_than).await?;
        if jobs.is_empty() {
            break;
        }
        left -= jobs.len();
        let now = session.now().await?;
        list.page(session, &jobs, now)?;
        // These are nowhere else any more: out with them before the next ones are taken.
        session.out.flush()?;
    }
    list.end(session, None)?;
    session.say(&format!("{} taken", counted((args.n - left) as u64, "job")));
    Ok(())
}
