//! `punctual import`: imports the jobs of a hand-written queue on Redis.
//!
//! ```text
//! sorted set:  look ──► jobs, ids from (run, round, member, score) ──► enqueue, durable ──► remove what is unchanged, next round
//! list:        move aside in one step ──► peek ──► jobs, ids from (run, place) ──► enqueue, durable ──► trim, count what is gone
//! ```
//!
//! An entry is removed only after the store accepted its job. After a kill, an entry that is found again gets the same id, and the
//! store answers `Duplicate`. A token in the state of each source makes the newest import its only importer. The scripts are in
//! `lua/`. Nothing here runs a job, and keys of a punctual store are never read.

mod batch;
mod consumers;
mod keys;
mod layout;
mod list;
mod making;
mod preview;
mod server;
mod sorted;
mod tally;

use std::{io::Write as _, time::Duration};

use punctual::store::Durability;
use tokio::time::sleep;

pub(crate) use self::layout::Import;
use self::{
    keys::Source,
    layout::Layout,
    list::ListImport,
    making::Maker,
    server::Server,
    sorted::SortedImport,
    tally::{Summary, Tally},
};
use super::{Session, progress::Progress};
use crate::{
    args::Globals,
    errors::{Failure, Result},
    output::{clean, grouped, json},
    requests::{Requests, exit_code},
};

/// Most entries that are on their way at once.
const BATCH_ENTRIES_MAX: usize = punctual::limits::BATCH_MAX;
/// Most bytes of them, one larger entry apart.
const BATCH_BYTES_MAX: usize = punctual::limits::BATCH_BYTES_MAX;
/// Between two rounds of `--follow`.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// What all parts of an import work with.
struct Importer<'a> {
    session: &'a Session,
    server: &'a Server,
    /// Identifies this importer among others of the same source.
    owner: String,
    progress: Progress,
    tally: Tally,
}

/// Prints what would be imported. Writes nothing, and needs no store.
pub(super) async fn dry_run(globals: &Globals, args: &Import) -> Result {
    let layout = args.layout()?;
    let server = Server::connect(&args.from().url()?).await?;
    preview::run(globals, &server, &layout).await
}

/// Imports everything.
pub(super) async fn run(session: &mut Session, args: &Import) -> Result {
    let layout = args.layout()?;
    let server = Server::connect(&args.from().url()?).await?;
    for warning in consumers::warnings(&server).await {
        session.say(&format!("warning: {}", clean(&warning)));
    }
    let store = session.client.store();
    if store.durability() == Durability::Fast {
        session.say(&format!(
            "warning: the durability of {} is fast: a power cut can lose the last jobs, which are already removed at --from \
             (set durability=full in --store, or make sure that --from is backed up)",
            clean(store.url())
        ));
    }
    let begin = std::time::Instant::now();
    let owner = format!("{:016x}", fastrand::u64(..));
    let progress = session.progress();
    let mut importer = Importer { session, server: &server, owner, progress, tally: Tally::default() };
    let request = if args.from().follow {
        let mut requests = Requests::listen()?;
        let mut is_first = true;
        loop {
            let round = async {
                importer.round(&layout, is_first).await?;
                is_first = false;
                sleep(FOLLOW_EVERY).await;
                Result::Ok(())
            };
            tokio::select! {
                biased;
                request = requests.next() => break Some(request),
                done = round => done?,
            }
        }
    } else {
        importer.round(&layout, true).await?;
        None
    };
    let Importer { tally, progress, .. } = importer;
    drop(progress);
    for line in tally.complaints() {
        session.say(&clean(&line));
    }
    let summary = tally.summary(begin.elapsed());
    tell(session, &summary)?;
    match (request, summary.is_whole()) {
        (Some(request), _) => Err(Failure::Silent(exit_code(request))),
        (None, true) => Ok(()),
        (None, false) => Err(Failure::FAILED),
    }
}

fn tell(session: &mut Session, summary: &Summary) -> Result {
    if session.format.is_json() {
        json(&mut session.out, summary)?;
    } else {
        writeln!(session.out, "{summary}")?;
    }
    Ok(session.out.flush()?)
}

impl Importer<'_> {
    /// Imports each source once, until the entries that it had are gone.
    async fn round(&mut self, layout: &Layout, is_first: bool) -> Result {
        let sources = keys::find(self.server, layout).await?;
        if sources.is_empty() && self.tally.is_empty() {
            self.session.say("nothing to import: none of these keys exists");
        }
        // All sources are checked before the first import, so that a refusal leaves everything as it was.
        if let Some(sorted) = layout.sorted.as_ref().filter(|_| is_first) {
            for source in sources.iter().filter(|source| !source.is_list) {
                sorted::check_unit(self.server, source, sorted.unit).await?;
            }
        }
        for source in &sources {
            self.source(layout, source, &sources).await?;
        }
        Ok(())
    }

    async fn source(&mut self, layout: &Layout, source: &Source, all: &[Source]) -> Result {
        let shown = self.session.client.store().url().to_owned();
        let run = self.server.begin(source, &self.owner, &layout.how(&shown)).await?;
        let maker = Maker::new(&layout.shape, source, &run)?;
        if source.is_list {
            ListImport::new(self, layout, source, maker).run().await
        } else {
            SortedImport::new(self, layout, (source, all), maker).run().await
        }
    }

    /// Shows how far it has come.
    fn show(&mut self) {
        let jobs = self.tally.here();
        self.progress.show(|| format!("{} jobs", grouped(jobs)));
    }
}
