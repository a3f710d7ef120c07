//! What processes with nothing to do send to the server: the block that is issued again once a minute, and their registrations.

use std::{
    collections::BTreeMap,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use punctual::{Client, NewJob, When, store::url::connect};

use crate::{
    console::{Console, calls},
    drill::Outcome,
    jobs,
    place::Place,
    process::Process,
    profile::Profile,
};

/// By then every worker waits.
const BLOCKED_MAX: Duration = Duration::from_mins(1);
/// Between two looks whether they do.
const LOOK: Duration = Duration::from_millis(20);
/// Longer than the second notification comes after the first.
const QUIET: Duration = Duration::from_millis(1_500);
/// How often is looked whether they rest.
const LOOKS_MAX: u32 = 40;
const SLOTS: usize = 8;
/// How long the server holds a worker's block.
const BLOCK_S: u64 = 60;
/// How often a worker registers itself at most, and how many commands that is: the time, and a script, of whose commands some are
/// called twice.
const REGISTER_S: u64 = 15;
const REGISTER_COMMANDS: u64 = 4;
/// How many workers there are in one go.
const WORKERS: [usize; 2] = [1, 20];

/// Watches them; answers whether all were as quiet as they must be.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut is_quiet = true;
    for workers in WORKERS {
        for job_in_an_hour in [false, true] {
            let dir = tempfile::tempdir()?;
            let place = Place::make(&profile.place, dir.path());
            if job_in_an_hour {
                runtime.block_on(async {
                    let job = NewJob { run_at: When::In(Duration::from_hours(1)), ..jobs::plain(1) };
                    Client::new(connect(&place.url).await?).push(vec![job]).await
                })?;
            }
            let sent = watch(&place, workers, profile.watch, dir.path())?;
            eprintln!(
                "{workers} idle workers, a job in an hour: {job_in_an_hour}, {:?}: {sent:?}",
                profile.watch
            );
            is_quiet &= is_as_promised(&sent, workers as u64, profile.watch);
        }
    }
    Ok(is_quiet)
}

/// The commands that the server ran while its workers were idle.
fn watch(place: &Place, workers: usize, long: Duration, dir: &Path) -> Outcome<BTreeMap<String, u64>> {
    let server = place.server.as_ref().ok_or("there is no server to watch")?;
    let mut processes = Vec::new();
    for n in 0..workers {
        let args = [SLOTS.to_string(), "2000".to_owned()];
        processes.push(Process::start("worker", &place.url, dir, format!("worker-{n}"), &args)?);
    }
    let mut console = Console::open(&server.socket())?;
    let (begin, blocked) = (Instant::now(), format!("blocked_clients:{workers}\r\n"));
    while !console.say(&["INFO", "clients"])?.contains(&blocked) {
        if BLOCKED_MAX < begin.elapsed() {
            return Err("not all workers wait".into());
        }
        thread::sleep(LOOK);
    }
    if !console.until_quiet(QUIET, LOOKS_MAX)? {
        return Err("the workers never rest".into());
    }
    thread::sleep(long);
    let mut sent = calls(&console.say(&["INFO", "commandstats"])?);
    sent.remove("config|resetstat");
    processes.iter_mut().try_for_each(Process::stop)?;
    Ok(sent)
}

/// One block per worker and minute with a look behind it; one more each, since the server ends a block up to 100 ms late or early
/// in the time that is watched.
fn is_as_promised(sent: &BTreeMap<String, u64>, workers: u64, long: Duration) -> bool {
    let blocks = workers * (long.as_secs() / BLOCK_S + 1);
    let registrations = REGISTER_COMMANDS * workers * (long.as_secs() / REGISTER_S + 1);
    sent.iter().all(|(command, calls)| match command.as_str() {
        "bzpopmin" => *calls <= blocks,
        "hget" => *calls <= blocks + registrations,
        _ => *calls <= registrations,
    })
}
