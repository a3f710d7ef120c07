//! `punctual take`: an at-most-once pop. From the answer on the jobs exist with whoever reads our output.
//!
//! So they are taken in slices, each printed before the next is taken, and what could not be printed is named on stderr.

use std::{io::Write as _, time::Duration};

use punctual::{JobRecord, parse_duration};

use super::{Session, ls};
use crate::{
    errors::{Failure, Result},
    output::counted,
};

/// The most jobs that are taken before they are printed, and that a reader which goes away can cost.
const SLICE: usize = 64;

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
        if nobody_reads() {
            return Err(unread().why("no more jobs were taken"));
        }
        let now = session.now().await?;
        let jobs = session.client.take_older(&args.queue, left.min(SLICE), args.older_than).await?;
        if jobs.is_empty() {
            break;
        }
        left -= jobs.len();
        // These are nowhere else any more: out with them before the next ones are taken.
        let printed = list.page(session, &jobs, now).and_then(|()| Ok(session.out.flush()?));
        printed.map_err(|failure| unprinted(&jobs, failure))?;
    }
    list.end(session, None)?;
    session.say(&format!("{} taken", counted((args.n - left) as u64, "job")));
    Ok(())
}

fn unread() -> Failure {
    Failure::new("failed", "nobody reads the jobs").why("the reader of stdout went away")
}

/// The jobs of a slice are done, and whoever should have read them did not, or not all of them.
fn unprinted(jobs: &[JobRecord], failure: Failure) -> Failure {
    let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    failure
        .if_unread(unread)
        .why(format!("taken, and perhaps not printed: {}", ids.join(" ")))
        .hint("punctual retry ID    runs one again, if its queue keeps done jobs")
}

/// Whether stdout is a pipe, socket or terminal that the other side has closed.
#[cfg(unix)]
fn nobody_reads() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdout = std::io::stdout();
    let mut looks = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut looks, Some(&at_once)).is_ok() && looks[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(not(unix))]
fn nobody_reads() -> bool {
    false
}
