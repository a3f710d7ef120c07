//! `punctual take`: takes due jobs, at most once. After the store's answer, only the reader of the output has the jobs.
//!
//! Therefore jobs are taken in slices. Each slice is printed before the next is taken. Jobs that could not be printed are named on
//! stderr.

use std::{
    io::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use punctual::{JobId, job::parse_duration};
use tokio_util::task::AbortOnDropHandle;

use super::{Session, ls};
use crate::{
    errors::{Failure, Result},
    output::{Format, counted},
    paint::Paint,
    requests::{Requests, exit_code},
};

/// The most jobs that are taken before they are printed, and that can be lost when the reader goes away.
const SLICE: usize = 64;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A job that is taken is done: it does not run again if its reader fails. A worker (punctual work) runs jobs at least once.

Examples:
  punctual take -q mail -n 10 -o ndjson
  punctual take --older-than 1h")]
pub(crate) struct Take {
    /// Queue to take from (default: default).
    #[arg(short, long, default_value = "default", hide_default_value = true)]
    queue: String,
    /// Number of jobs at most (default: 1).
    #[arg(short, default_value_t = 1, hide_default_value = true)]
    n: usize,
    /// Time for which a job must have been due (default: 0 s).
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = parse_duration, value_name = "DURATION")]
    older_than: Duration,
}

/// Jobs that are taken and not printed yet, and the signal that asked for the end.
#[derive(Debug, Default)]
struct Slice {
    ids: Vec<JobId>,
    /// Whether a call is on its way whose jobs are not known yet.
    is_asked_for: bool,
    /// The signal.
    request: Option<i32>,
}

impl Slice {
    fn answered(&mut self, ids: impl Iterator<Item = JobId>) {
        self.ids.extend(ids);
        self.is_asked_for = false;
    }
}

/// Shared with the task that waits for signals. A task that is blocked on stdout cannot wait for them.
type Shared = Arc<Mutex<Slice>>;

pub(crate) async fn run(session: &mut Session, args: &Take) -> Result {
    let slice = Shared::default();
    let requests = Requests::listen()?;
    let listener = AbortOnDropHandle::new(tokio::spawn(end(requests, Arc::clone(&slice))));
    let (mut left, mut list) = (args.n, ls::Printer::new(session)?);
    while 0 < left {
        if let Some(request) = locked(&slice).request {
            session.say(&format!("stopped early: {} taken", counted((args.n - left) as u64, "job")));
            return Err(Failure::Silent(exit_code(request)));
        }
        if nobody_reads() {
            return Err(unread().why("no more jobs were taken"));
        }
        let now = session.now().await?;
        locked(&slice).is_asked_for = true;
        let jobs = session.client.take_older(&args.queue, left.min(SLICE), args.older_than).await?;
        if jobs.is_empty() {
            break;
        }
        locked(&slice).answered(jobs.iter().map(|job| job.id));
        left -= jobs.len();
        // Only this process has these jobs: they are printed before the next ones are taken.
        let printed = list.page(session, &jobs, now).and_then(|()| Ok(session.out.flush()?));
        printed.map_err(|failure| unprinted(&locked(&slice).ids, failure))?;
        locked(&slice).ids.clear();
    }
    list.end(session, None)?;
    drop(listener);
    session.say(&format!("{} taken", counted((args.n - left) as u64, "job")));
    Ok(())
}

/// After the first signal, the requested slice is printed, and no other is taken. The second signal ends the program, which names the
/// jobs that were taken.
async fn end(mut requests: Requests, slice: Shared) {
    let first = requests.next().await;
    locked(&slice).request = Some(first);
    let second = requests.next().await;
    let slice = locked(&slice);
    let failure = if slice.is_asked_for {
        Failure::unknown_outcome("stopped while jobs were taken")
            .why(format!("the store has not answered yet: up to {SLICE} jobs may be taken and not printed"))
    } else if slice.ids.is_empty() {
        Failure::Silent(exit_code(second))
    } else {
        unprinted(&slice.ids, Failure::failed("stopped while jobs were printed"))
    };
    failure.exits(exit_code(second)).tell(Format::Human, Paint::default());
    std::process::exit(exit_code(second).into());
}

fn locked(slice: &Shared) -> MutexGuard<'_, Slice> {
    slice.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unread() -> Failure {
    Failure::failed("the jobs could not be printed").why("the reader of stdout went away")
}

/// Makes the error of a slice whose jobs are done but could not all be printed.
fn unprinted(ids: &[JobId], failure: Failure) -> Failure {
    let ids: Vec<String> = ids.iter().map(JobId::to_string).collect();
    failure
        .if_unread(unread)
        .why(format!("taken, but maybe not printed: {}", ids.join(" ")))
        .hint("punctual retry ID    runs a job again, if its queue keeps done jobs")
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
