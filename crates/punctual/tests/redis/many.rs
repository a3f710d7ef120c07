//! More of everything than a script could unpack at once (8,000): what a call may take is bounded, more than that is
//! refused with a typed error, and whatever has piled up drains over repeated calls.

use std::{sync::Arc, time::Duration};

use punctual::{
    Client, ErrorKind, NewJob, Payload, Timestamp, Unique, When,
    store::{
        Action, Audit, CallId, GroupLimits, Keep, Lease, QueueRequest, QueueSettings, Rate, Reserve,
        Settlement, Store, Target, Verdict,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
    testing::pass_time,
};

use super::{reserve, server::Server};

/// One more than the server's Lua puts on its stack.
const MANY: u64 = 8_001;
const CALL_MAX: usize = 1_000;
/// A bound on calls that must bring everything to an end, each at least one item further.
const CALLS_MAX: u64 = MANY;
const QUEUE: &str = "mail";
const LEASE: Duration = Duration::from_secs(15);

/// A store whose clock stands still.
struct Still {
    client: Client,
    store: Arc<RedisStore>,
    clock: ManualClock,
    number: u64,
    // Dropped last.
    server: Server,
}

impl Still {
    async fn new() -> Self {
        let server = Server::start(&[]);
        let clock = ManualClock::new(Timestamp::from_ms(1_795_000_000_000).unwrap());
        let store = RedisStore::open(&server.url(), Clock::Manual(clock.clone())).await.unwrap();
        let store = Arc::new(store);
        Self { client: Client::new(store.clone()), store, clock, number: 0, server }
    }

    fn jobs(&self, with: impl Fn(u64, &mut NewJob)) -> Vec<NewJob> {
        let job = |n| {
            let mut job = NewJob::new(self.client.make_id(), "k", QUEUE, Payload::json("1"));
            with(n, &mut job);
            job
        };
        (0..MANY).map(job).collect()
    }

    async fn push(&self, with: impl Fn(u64, &mut NewJob)) {
        let answers = self.client.push(self.jobs(with)).await.unwrap();
        assert!(answers.len() as u64 == MANY && answers.iter().all(punctual::store::Enqueued::is_new));
    }

    /// Reserves up to `n`; answers them, and whether there is more.
    async fn reserve(&mut self, n: usize) -> (Vec<Lease>, usize, bool) {
        self.number += 1;
        let batch = self.store.reserve(&reserve(self.number, n)).await.unwrap();
        (batch.jobs.iter().map(|job| job.lease).collect(), batch.reclaimed.len(), batch.more)
    }

    async fn reserve_all(&mut self) -> Vec<Lease> {
        let mut leases = Vec::new();
        for _ in 0..CALLS_MAX {
            let (some, _, more) = self.reserve(CALL_MAX).await;
            leases.extend(some);
            if !more {
                break;
            }
        }
        assert_eq!(leases.len() as u64, MANY);
        leases
    }

    async fn settle(&self, leases: &[Lease], verdict: &Verdict) {
        for leases in leases.chunks(CALL_MAX) {
            let settle = |lease: &Lease| Settlement { lease: *lease, verdict: verdict.clone() };
            let settlements: Vec<_> = leases.iter().map(settle).collect();
            let _ = self.store.settle(&settlements, None).await.unwrap();
        }
    }

    async fn keep(&self, keep: Keep) {
        let settings = QueueSettings { done: keep, cancelled: keep, dead: keep, ..QueueSettings::default() };
        self.client.queue(QUEUE).set(settings).await.unwrap();
    }

    /// Sweeps until there is nothing more to sweep: items in all.
    async fn sweep(&self) -> u64 {
        let mut items = 0;
        for _ in 0..CALLS_MAX {
            let swept = self.store.sweep(CALL_MAX).await.unwrap();
            assert!(swept.expired + swept.removed + swept.forgotten <= CALL_MAX as u64);
            items += swept.expired + swept.removed + swept.forgotten;
            if !swept.more {
                break;
            }
        }
        items
    }

    /// Nothing is wrong with what is there.
    async fn audit(&self) {
        let mut audit = Audit::default();
        for _ in 0..CALLS_MAX {
            let slice = self.store.audit(audit.clone()).await.unwrap();
            assert_eq!(slice.findings, []);
            match slice.next {
                Some(next) => audit.from = next,
                None => return,
            }
        }
        panic!("the audit does not end");
    }

    async fn total(&self) -> u64 {
        self.client.count(None).await.unwrap().total()
    }
}

fn refused<T: std::fmt::Debug>(answer: punctual::Result<T>) {
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Invalid);
}

/// S13: a thousand and one is refused by every verb, and changes nothing.
#[tokio::test]
async fn one_more_than_a_call_may_take_is_refused() {
    let still = Still::new().await;
    let jobs = still.jobs(|_, _| ());
    let call = CallId { instance: 7, number: 1 };
    refused(still.store.enqueue(call, &jobs[..=CALL_MAX]).await);
    refused(still.store.enqueue(call, &jobs).await);
    refused(still.store.reserve(&reserve(1, CALL_MAX + 1)).await);
    let want = |n| QueueRequest { queue: format!("q{n}"), share: 1, at_most: 1 };
    for queues in [65, MANY] {
        let want = Reserve { queues: (0..queues).map(want).collect(), ..reserve(1, 1) };
        refused(still.store.reserve(&want).await);
    }
    let lease = Lease { job: jobs[0].id, fence: 1 };
    refused(still.store.extend(&vec![lease.into(); CALL_MAX + 1]).await);
    let settlement = Settlement { lease, verdict: Verdict::Ack };
    refused(still.store.settle(&vec![settlement; CALL_MAX + 1], None).await);
    let targets: Vec<Target> = jobs.iter().map(|job| job.id.into()).collect();
    refused(still.store.act(&targets, &Action::RunNow).await);
    refused(still.store.sweep(CALL_MAX + 1).await);
    assert_eq!(still.total().await, 0);
}

#[tokio::test]
async fn due_jobs_drain() {
    let mut still = Still::new().await;
    still.push(|_, _| ()).await;
    let leases = still.reserve_all().await;
    for leases in leases.chunks(CALL_MAX) {
        let held = still
            .store
            .extend(&leases.iter().map(|lease| (*lease).into()).collect::<Vec<_>>())
            .await
            .unwrap();
        assert_eq!(held.len(), leases.len());
    }
    still.settle(&leases, &Verdict::Ack).await;
    assert_eq!(still.client.count(None).await.unwrap().done, MANY);
    still.audit().await;
}

#[tokio::test]
async fn leases_past_their_time_drain() {
    let mut still = Still::new().await;
    still.push(|_, _| ()).await;
    still.reserve_all().await;
    pass_time(&*still.store, &still.clock, LEASE + Duration::from_secs(1)).await;
    let mut reclaimed = 0;
    for _ in 0..CALLS_MAX {
        let (_, back, _) = still.reserve(0).await;
        reclaimed += back as u64;
        if back == 0 {
            break;
        }
    }
    let counts = still.client.count(None).await.unwrap();
    assert_eq!((reclaimed, counts.waiting, counts.running), (MANY, MANY, 0));
    assert_eq!(still.reserve_all().await.len() as u64, MANY);
    still.audit().await;
}

#[tokio::test]
async fn expired_jobs_drain() {
    for by_sweep in [false, true] {
        let mut still = Still::new().await;
        still.push(|_, job| job.expires_at = Some(When::In(Duration::from_secs(1)))).await;
        still.clock.advance(Duration::from_secs(2));
        if by_sweep {
            assert_eq!(still.sweep().await, MANY);
        } else {
            for _ in 0..CALLS_MAX {
                let (leases, _, more) = still.reserve(10).await;
                assert_eq!(leases, []);
                if !more {
                    break;
                }
            }
        }
        let counts = still.client.count(None).await.unwrap();
        assert_eq!((counts.waiting, counts.cancelled), (0, MANY));
        still.audit().await;
    }
}

/// Ended jobs go by their age, then the ids that are remembered for them.
#[tokio::test]
async fn ended_jobs_and_their_ids_are_retired() {
    let mut still = Still::new().await;
    still.keep(Keep { age_ms: 60_000, count: u64::MAX >> 1, bytes: u64::MAX >> 1 }).await;
    still.push(|n, job| job.id = punctual::JobId::derived(QUEUE, None, &n.to_string())).await;
    let leases = still.reserve_all().await;
    still.settle(&leases, &Verdict::Dead { error: "no".into() }).await;
    assert_eq!(still.client.count(None).await.unwrap().dead, MANY);
    pass_time(&*still.store, &still.clock, Duration::from_mins(2)).await;
    assert_eq!(still.sweep().await, MANY);
    assert_eq!(still.total().await, 0);
    pass_time(&*still.store, &still.clock, Duration::from_hours(25)).await;
    // Beside the ids: the calls of one producer, which has two lanes, and of one worker.
    assert_eq!(still.sweep().await, MANY + 3);
    still.audit().await;
}

/// A bound that is set on what is there takes effect in slices.
#[tokio::test]
async fn a_bound_on_ended_jobs_that_comes_late_is_followed() {
    let mut still = Still::new().await;
    still.push(|_, _| ()).await;
    let leases = still.reserve_all().await;
    still.settle(&leases, &Verdict::Ack).await;
    still.keep(Keep { count: 1, ..Keep::SHORT }).await;
    still.sweep().await;
    assert_eq!(still.total().await, 1);
    still.audit().await;
}

#[tokio::test]
async fn operators_act_on_many_jobs() {
    let still = Still::new().await;
    still.push(|_, _| ()).await;
    for action in [Action::RescheduleBy(60_000), Action::Cancel { reason: None }, Action::Retry] {
        let progress = still.client.act_where(&punctual::job::Filter::all(), &action, |_| ()).await.unwrap();
        assert_eq!(progress.done, MANY, "{action:?}");
    }
    assert_eq!(still.client.queue(QUEUE).purge(|_| ()).await.unwrap(), MANY);
    assert_eq!(still.total().await, 0);
    still.audit().await;
}

#[tokio::test]
async fn unique_keys_and_windows_of_many_jobs_are_freed() {
    let mut still = Still::new().await;
    let window = Duration::from_mins(1);
    still.keep(Keep::NOTHING).await;
    still
        .push(|n, job| {
            let key = Unique::key(format!("key {n}"));
            job.unique = Some(if n % 2 == 0 { key } else { key.window(window) });
        })
        .await;
    let leases = still.reserve_all().await;
    still.settle(&leases, &Verdict::Ack).await;
    still.clock.advance(window);
    // Half of the keys went with their jobs, the windows by their time.
    assert_eq!(still.sweep().await, MANY / 2);
    still.push(|n, job| job.unique = Some(Unique::key(format!("key {n}")))).await;
    still.audit().await;
}

/// As many queues, producers and workers, with a job each.
#[tokio::test]
async fn many_names_are_listed_counted_and_swept() {
    let still = Still::new().await;
    let name = |n: u64| format!("q{n:05}");
    for (n, job) in (1..).zip(still.jobs(|n, job| job.queue = name(n))) {
        let queue = job.queue.clone();
        let answers = still.store.enqueue(CallId { instance: n, number: 1 }, &[job]).await.unwrap();
        assert!(answers[0].is_new());
        let queues = vec![QueueRequest { queue, share: 1, at_most: 1 }];
        let call = CallId { instance: n, number: 1 };
        let batch = still.store.reserve(&Reserve { call, queues, ..reserve(1, 1) }).await.unwrap();
        assert_eq!(batch.jobs.len(), 1);
    }
    let (mut names, mut after) = (0, None);
    for _ in 0..CALLS_MAX {
        let page = still.store.queues(after.as_deref()).await.unwrap();
        assert!(page.len() <= CALL_MAX);
        names += page.len() as u64;
        match page.into_iter().next_back() {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    assert_eq!((names, still.client.count(None).await.unwrap().running), (MANY, MANY));
    pass_time(&*still.store, &still.clock, Duration::from_hours(2)).await;
    assert_eq!(still.sweep().await, 2 * MANY);
    still.audit().await;
}

impl Still {
    /// Keys that say something of groups.
    fn keys_of_groups(&self) -> Vec<String> {
        let keys = self.server.say(&["KEYS", "*"]);
        assert!(keys.contains(":l"), "{keys}");
        let of_groups = |key: &&str| [":h", ":y", ":g"].iter().any(|of| key.ends_with(of));
        keys.lines().filter(of_groups).map(str::to_owned).collect()
    }
}

/// Groups that have no jobs any more leave nothing behind, however many there were.
#[tokio::test]
async fn groups_that_have_drained_are_forgotten() {
    let mut of = Still::new().await;
    of.push(|n, job| job.group = Some(format!("tenant {n}"))).await;
    let leases = of.reserve_all().await;
    of.settle(&leases, &Verdict::Ack).await;
    of.audit().await;
    assert_eq!(of.keys_of_groups(), [""; 0]);
}

/// Those with a rate are forgotten by sweeps once it says nothing any more, some by each, also where nobody reserves.
#[tokio::test]
async fn groups_that_a_rate_remembers_are_forgotten_in_time() {
    let mut of = Still::new().await;
    let rate = Rate { max: 1, period_ms: 1_000, burst: 1 };
    let group = GroupLimits { rate: Some(rate), ..GroupLimits::default() };
    of.client.queue(QUEUE).set(QueueSettings { group, ..QueueSettings::default() }).await.unwrap();
    of.push(|n, job| job.group = Some(format!("tenant {n}"))).await;
    let leases = of.reserve_all().await;
    of.settle(&leases, &Verdict::Ack).await;
    of.sweep().await;
    assert_eq!(of.keys_of_groups().len(), 2);
    of.clock.advance(Duration::from_secs(2));
    // So many in each.
    for _ in 0..=MANY / 300 {
        of.store.sweep(CALL_MAX).await.unwrap();
    }
    assert_eq!(of.keys_of_groups(), [""; 0]);
    of.audit().await;
}
