//! Four threads on one store, at everything at once; the recorded history is judged. On SQLite each thread has a handle of
//! its own on the one file, on Redis a connection.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[cfg(feature = "redis")]
#[path = "support/redis.rs"]
mod server;

use std::{
    path::Path,
    sync::{Arc, Barrier},
    time::Duration,
};

use fastrand::Rng;
#[cfg(feature = "redis")]
use punctual::store::redis::RedisStore;
#[cfg(feature = "sqlite")]
use punctual::store::sqlite::{SqliteOptions, SqliteStore};
use punctual::{
    JobId, NewJob, OnConflict, Payload, Timestamp, Unique, When,
    store::{
        Action, Batch, CallId, Heartbeat, Lease, QueueRequest, Reserve, Settled, Settlement, Store, Target,
        Verdict,
        clock::{Clock, ManualClock},
        memory::MemoryStore,
    },
};
use punctual_check::{History, Options, Recorder, RecordingStore, Verdict as Judgement, Word, judge};

const THREADS: u64 = 4;
const CALLS: usize = 150;
/// Histories per store, unless `PUNCTUAL_CONCURRENCY_HISTORIES` says otherwise.
const HISTORIES: u64 = 10;
/// A call is a round trip there.
#[cfg(feature = "redis")]
const HISTORIES_ON_REDIS: u64 = 5;

/// Where files are fast.
fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap()
}

/// Opens a handle on the one store of a history.
type Opener<'a> = &'a (dyn Fn() -> Arc<dyn Store> + Sync);

fn record(dir: &Path, open: Opener<'_>, name: &str) -> RecordingStore {
    let recorder = Recorder::create(&dir.join(format!("{name}.ndjson")), name, 1_000, 0).unwrap();
    RecordingStore::new(open(), Arc::new(recorder))
}

/// One thread's part.
struct Player {
    store: RecordingStore,
    clock: ManualClock,
    rng: Rng,
    instance: u64,
    number: u64,
    enqueued: u64,
    last: Option<Reserve>,
    /// All that it was ever handed, stale ones too.
    leases: Vec<Lease>,
}

impl Player {
    async fn call(&mut self) {
        match self.rng.u8(..20) {
            0..5 => self.enqueue().await,
            5..10 => {
                let want = self.want();
                let batch = self.store.reserve(&want).await.unwrap();
                self.keep(&batch);
            }
            10..14 => self.settle().await,
            14 => {
                let leases: Vec<Lease> = (0..3).filter_map(|_| self.lease()).collect();
                self.store
                    .extend(&leases.into_iter().map(Heartbeat::from).collect::<Vec<_>>())
                    .await
                    .unwrap();
            }
            15..18 => self.act().await,
            _ => self.clock.advance(Duration::from_millis(self.rng.u64(..4_000))),
        }
    }

    /// Few ids, so that players meet.
    fn id(&mut self) -> JobId {
        JobId::derived("q", None, &self.rng.u32(..60).to_string())
    }

    async fn enqueue(&mut self) {
        self.enqueued += 1;
        let call = CallId { instance: self.instance, number: self.enqueued };
        let jobs: Vec<NewJob> = (0..self.rng.usize(1..4)).map(|_| self.job()).collect();
        let first = self.store.enqueue(call, &jobs).await.unwrap();
        if self.rng.u8(..8) == 0 {
            let again = self.store.enqueue(call, &jobs).await.unwrap();
            assert_eq!(again.len(), first.len());
        }
    }

    fn job(&mut self) -> NewJob {
        let id = self.id();
        // The payload follows from the id: whoever inserts it, it is the same.
        let mut job = NewJob::new(id, "k", "q", Payload::json(format!("\"{id}\"")));
        job.run_at =
            if self.rng.bool() { When::Now } else { When::In(Duration::from_millis(self.rng.u64(..6_000))) };
        job.options.max_attempts = Some(self.rng.u32(2..5));
        if self.rng.u8(..4) == 0 {
            let key = format!("key {}", self.rng.u8(..3));
            let rule = [OnConflict::Keep, OnConflict::Reschedule][self.rng.usize(..2)];
            job.unique = Some(Unique::key(key).on_conflict(rule));
            // Ids of jobs with keys are their own, as placement wants it.
            job.id = JobId::derived("q", job.placement_key(), &id.to_string());
        }
        job
    }

    fn want(&mut self) -> Reserve {
        if self.rng.u8(..6) == 0
            && let Some(last) = &self.last
        {
            return last.clone();
        }
        self.number += 1;
        let n = self.rng.usize(1..5);
        let want = Reserve {
            call: CallId { instance: self.instance, number: self.number },
            worker: "player".to_owned(),
            queues: vec![QueueRequest { queue: "q".to_owned(), share: n, at_most: n }],
            n,
            lease: Some(Duration::from_secs(3)),
            company: false,
        };
        self.last = Some(want.clone());
        want
    }

    fn keep(&mut self, batch: &Batch) {
        self.leases.extend(batch.jobs.iter().map(|job| job.lease));
    }

    fn lease(&mut self) -> Option<Lease> {
        let newest = self.leases.len().min(12);
        (0 < newest).then(|| self.leases[self.leases.len() - 1 - self.rng.usize(..newest)])
    }

    async fn settle(&mut self) {
        let mut batch = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            let Some(lease) = self.lease() else { continue };
            batch.push(Settlement { lease, verdict: self.verdict() });
        }
        let then = self.rng.bool().then(|| self.want());
        let (answers, reserved) = self.store.settle(&batch, then.as_ref()).await.unwrap();
        assert_eq!(answers.len(), batch.len());
        if let Some(reserved) = reserved {
            self.keep(&reserved);
        }
        if self.rng.u8(..6) == 0 {
            let (again, _) = self.store.settle(&batch, None).await.unwrap();
            assert!(again.iter().all(|answer| *answer == Settled::LeaseLost), "a settled lease was settled");
        }
    }

    fn verdict(&mut self) -> Verdict {
        match self.rng.u8(..8) {
            0..3 => Verdict::Ack,
            3 => {
                let pause = Duration::from_millis(self.rng.u64(..5_000));
                Verdict::Retry { at: When::In(pause), error: "no".to_owned() }
            }
            4 => Verdict::Snooze { after: Duration::from_millis(self.rng.u64(100..5_000)), reason: None },
            5 => Verdict::Release,
            6 => Verdict::Cancel { reason: None },
            _ => Verdict::Dead { error: "no".to_owned() },
        }
    }

    async fn act(&mut self) {
        let targets: Vec<Target> = (0..2).map(|_| self.id().into()).collect();
        let action = match self.rng.u8(..5) {
            0 | 1 => Action::Cancel { reason: None },
            2 => {
                let at = self.clock.now().as_ms() + self.rng.u64(..5_000);
                Action::Reschedule(When::At(Timestamp::saturating_from_ms(at)))
            }
            3 => Action::RunNow,
            _ => Action::Retry,
        };
        let answers = self.store.act(&targets, &action).await.unwrap();
        assert_eq!(answers.len(), targets.len());
    }
}

fn play(store: RecordingStore, clock: ManualClock, seed: u64, thread: u64, start: &Barrier) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rng = Rng::with_seed(seed * THREADS + thread);
    let (number, enqueued, last, leases) = (0, 0, None, vec![]);
    let mut player = Player { store, clock, rng, instance: thread + 1, number, enqueued, last, leases };
    start.wait();
    runtime.block_on(async {
        for _ in 0..CALLS {
            player.call().await;
        }
    });
}

/// Takes back what was left, runs everything to its end, and reads what is there.
async fn rest(store: &RecordingStore, clock: &ManualClock) {
    for number in 1.. {
        let want = Reserve {
            call: CallId { instance: 99, number },
            worker: "rest".to_owned(),
            queues: vec![QueueRequest { queue: "q".to_owned(), share: 100, at_most: 100 }],
            n: 100,
            lease: None,
            company: false,
        };
        let batch = store.reserve(&want).await.unwrap();
        let acks: Vec<Settlement> =
            batch.jobs.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
        let _ = store.settle(&acks, None).await.unwrap();
        match batch.next_due {
            Some(pause) => clock.advance(pause),
            None => break,
        }
    }
    store.dump().await.unwrap();
}

fn history(dir: &Path, clock: &ManualClock, open: Opener<'_>, seed: u64) -> Judgement {
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = record(dir, open, &format!("player-{thread}"));
            let (clock, start) = (clock.clone(), &start);
            scope.spawn(move || play(store, clock, seed, thread, start));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(rest(&record(dir, open, "rest"), clock));
    judge(&History::read(&[dir.to_owned()]).unwrap(), Options { referee: false, ..Options::default() })
}

/// Judges histories of a store that `make` makes in a folder.
fn check(make: impl Fn(&Path, Clock) -> Box<dyn Fn() -> Arc<dyn Store> + Sync>) {
    check_some(HISTORIES, make);
}

fn check_some(unless_told: u64, make: impl Fn(&Path, Clock) -> Box<dyn Fn() -> Arc<dyn Store> + Sync>) {
    let (mut acked, mut events) = (0, 0);
    let said = std::env::var("PUNCTUAL_CONCURRENCY_HISTORIES").ok().and_then(|n| n.parse().ok());
    let histories = said.unwrap_or(unless_told);
    for seed in 0..histories {
        let dir = scratch();
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_000_000_000));
        let open = make(dir.path(), Clock::Manual(clock.clone()));
        let verdict = history(dir.path(), &clock, &*open, seed);
        assert_eq!(verdict.verdict, Word::Valid, "seed {seed}: {verdict}");
        assert_eq!(verdict.waiting, 0, "seed {seed}: {verdict}");
        acked += verdict.acked;
        events += verdict.events;
    }
    println!("{histories} histories, {acked} jobs, {events} events");
}

#[test]
fn four_threads_on_one_memory_store_break_no_rule() {
    check(|_, clock| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock));
        Box::new(move || Arc::clone(&store))
    });
}

#[cfg(feature = "sqlite")]
#[test]
fn four_threads_with_a_handle_each_on_one_file_break_no_rule() {
    check(|dir, clock| {
        let (file, options) = (dir.join("jobs.db"), SqliteOptions { clock, ..SqliteOptions::default() });
        Box::new(move || Arc::new(SqliteStore::open(&file, options.clone()).unwrap()))
    });
}

#[cfg(feature = "redis")]
#[test]
fn four_threads_with_a_connection_each_on_one_server_break_no_rule() {
    check_some(HISTORIES_ON_REDIS, |_, clock| {
        let url = server::Server::shared().url();
        Box::new(move || {
            let open = RedisStore::open(&url, clock.clone());
            // Some of those who open are in a runtime.
            let open =
                || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(open);
            Arc::new(std::thread::scope(|scope| scope.spawn(open).join().unwrap()).unwrap())
        })
    });
}
