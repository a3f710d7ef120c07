//! What a store holds, without what differs from run to run; and the store that every run begins with.

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use punctual::{
    Client, Ctx, JobRecord, Outcome, State, Worker,
    job::Filter,
    limits::BATCH_MAX,
    store::{DocOp, List, Precondition},
};
use punctual_server::token::{self, NewToken, RANDOM_BYTES, Role};
use tempfile::TempDir;

use super::table::{BULK, DEAD, DUE, FAR_AT, ROWS, TOKEN, WORKER};
use crate::fixture::Cli;

/// Jobs of the store that every run begins with.
pub(crate) const TEMPLATE_JOBS: usize = 156;
/// Of them, those of one queue.
const BULK_JOBS: usize = 150;

/// A file of a store with something of everything in it.
pub(crate) struct Store(TempDir);

impl Store {
    pub(crate) fn make() -> Self {
        let t = Cli::new();
        let far = ROWS.iter().find(|row| row.name == "cancel").unwrap().words;
        for id in &far[1..] {
            t.ok(&format!("push far --id {id} --at {FAR_AT}"));
        }
        t.ok(&format!("push due --id {DUE} -q slow"));
        t.ok(&format!("push dead --id {DEAD} -q ended --max-attempts 1"));
        t.feed("push --batch -", format!("{{\"kind\":\"k\",\"queue\":\"{BULK}\"}}\n").repeat(BULK_JOBS)).ok();
        t.ok("board set scores ana 7");
        t.ok("queue pause paused --by ana");
        t.args(&["cron", "set", "yearly", "0 0 1 1 *", "report"]).ok();
        t.args(&["cron", "set", "stopped", "0 0 1 1 *", "other"]).ok();
        t.ok("cron pause stopped --by ana");
        t.ok("topic subscribe news mail");
        runtime().block_on(async {
            let client = connect(&t).await;
            let (stop, is_done) = (punctual::worker::Shutdown::default(), AtomicBool::new(false));
            let graceful = stop.graceful.clone();
            let worker = Worker::new(&client).queue("ended").slots(1).serve_topics(false);
            let run = move |_: JobRecord, _: Ctx<()>| {
                is_done.store(true, Relaxed);
                graceful.cancel();
                std::future::ready(Outcome::Dead("no".to_owned()))
            };
            worker.handle_raw(run).run_until(stop).await.unwrap();
            let mut random = [0; RANDOM_BYTES];
            random[..4].copy_from_slice(&0x00c0_ffee_u32.to_be_bytes());
            let made = token::make(&client, &NewToken::new("ana", Role::Admin), random).await.unwrap();
            assert_eq!(made.token.id, TOKEN);
            let now = client.store().now().await.unwrap().as_ms();
            let value = format!(r#"{{"name":"here","seen_ms":{now},"slots":1}}"#).into_bytes();
            let key = format!("worker/{WORKER}");
            let put = DocOp::Put { key, precondition: Precondition::Always, value };
            client.store().doc(&put).await.unwrap();
            let lock = client.lock("held").lease(Duration::from_hours(1));
            std::mem::forget(lock.try_acquire().await.unwrap().unwrap());
        });
        let made = Look::at(&t);
        assert_eq!(made.ids().len(), TEMPLATE_JOBS, "{made:#?}");
        // Whoever holds the lock still has the file open.
        let file = rusqlite::Connection::open(t.path("punctual.db")).unwrap();
        file.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0)).unwrap();
        let folder = tempfile::Builder::new().prefix("punctual-leave-").tempdir().unwrap();
        fs::copy(t.path("punctual.db"), folder.path().join("punctual.db")).unwrap();
        Self(folder)
    }

    pub(crate) fn copy_to(&self, cli: &Cli) {
        fs::copy(self.0.path().join("punctual.db"), cli.path("punctual.db")).unwrap();
        let line = "{\"kind\":\"k\",\"queue\":\"new\"}\n";
        fs::write(cli.path("lines"), line.repeat(1_100)).unwrap();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn connect(cli: &Cli) -> Client {
    Client::connect(&format!("sqlite:{}?mode=rw", cli.path("punctual.db").display())).await.unwrap()
}

/// What a store holds.
#[derive(Debug)]
pub(crate) struct Look {
    jobs: Vec<JobRecord>,
    /// Everything that two runs have in common, a line each.
    lines: BTreeSet<String>,
    locks: BTreeSet<String>,
}

impl PartialEq for Look {
    fn eq(&self, other: &Self) -> bool {
        self.lines == other.lines
    }
}

impl Look {
    pub(crate) fn at(cli: &Cli) -> Self {
        runtime().block_on(async {
            let client = connect(cli).await;
            let mut list = List { filter: Filter::all(), after: None, limit: BATCH_MAX };
            let (mut jobs, mut now);
            (jobs, now) = (Vec::new(), None);
            loop {
                let page = client.list(&list).await.unwrap();
                now = now.or(Some(page.now));
                jobs.extend(page.jobs);
                list.after = page.next;
                if list.after.is_none() {
                    break;
                }
            }
            let now = now.unwrap();
            let mut lines: Vec<String> = jobs
                .iter()
                .map(|job| {
                    let due = if job.run_at <= now { 0 } else { job.run_at.as_ms() };
                    let payload = String::from_utf8_lossy(&job.payload.bytes);
                    let JobRecord { kind, queue, priority, state, attempt, unique, tags, headers, .. } = job;
                    format!("job {kind} {queue} {priority} {state} {due} {attempt} {payload} {unique:?} {tags:?} {:?}", headers.keys())
                })
                .collect();
            for page in client.schedules(None).await.unwrap().schedules {
                let paused = page.schedule.paused.is_some();
                lines.push(format!("schedule {} {:?} {paused}", page.name, page.schedule.cron));
            }
            for queue in ["default", BULK, "ended", "mail", "new", "other", "paused", "slow"] {
                if let Some(info) = client.queue(queue).show().await.unwrap() {
                    let paused = info.settings.paused.as_ref().map(|pause| pause.by.clone());
                    let settings = punctual::store::QueueSettings { paused: None, ..info.settings };
                    lines.push(format!("queue {queue} {paused:?} {settings:?}"));
                }
            }
            for topic in client.topics(None).await.unwrap().topics {
                lines.push(format!("topic {topic:?}"));
            }
            for token in token::list(&client).await.unwrap().tokens {
                lines.push(format!("token {} {}", token.name, token.role));
            }
            let order = client.worker(WORKER).await.unwrap().and_then(|worker| worker.order);
            lines.push(format!("worker {order:?}"));
            lines.push(format!("board {:?}", client.leaderboard("scores").top(10).await.unwrap()));
            let locks = client.locks(10).await.unwrap().0;
            let locks: BTreeSet<String> = locks.into_iter().map(|held| held.name).collect();
            lines.push(format!("locks {locks:?}"));
            // Equal jobs count.
            let mut numbered = BTreeSet::new();
            lines.sort();
            for (at, line) in lines.iter().enumerate() {
                let same = lines[..at].iter().rev().take_while(|other| *other == line).count();
                numbered.insert(format!("{line} #{same}"));
            }
            Self { jobs, lines: numbered, locks }
        })
    }

    /// Where it differs.
    pub(crate) fn against(&self, other: &Self) -> String {
        let more: Vec<_> = self.lines.difference(&other.lines).take(3).collect();
        let less: Vec<_> = other.lines.difference(&self.lines).take(3).collect();
        format!("it has {more:?} in place of {less:?}")
    }

    pub(crate) fn ids(&self) -> BTreeSet<String> {
        self.jobs.iter().map(|job| job.id.to_string()).collect()
    }

    pub(crate) fn done_in(&self, queue: &str) -> BTreeSet<String> {
        let done = self.jobs.iter().filter(|job| job.queue == queue && job.state == State::Done);
        done.map(|job| job.id.to_string()).collect()
    }

    pub(crate) fn running(&self) -> usize {
        self.jobs.iter().filter(|job| job.state == State::Running).count()
    }

    pub(crate) const fn locks(&self) -> &BTreeSet<String> {
        &self.locks
    }
}
