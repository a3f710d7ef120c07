//! S13: no script goes through all queues of a store, nor reads more than about a mebibyte of records. A call that has more to
//! do takes several, and answers as one would.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use punctual::{
    Client, ErrorKind, NewJob, Payload, State, Timestamp, When,
    job::Filter,
    store::{
        Acted, Action, Audit, CallId, Keep, List, QueueOp, QueueReply, QueueRequest, QueueSettings, Reserve,
        Settlement, Store, Swept, Target, Verdict,
        clock::{Clock, ManualClock},
        memory::MemoryStore,
        redis::RedisStore,
    },
    testing::pass_time,
};

use super::{console::calls, reserve, server::Server};

/// Queues that one script may go through.
const SLICE: u64 = 256;
const QUEUES: u64 = 3_000;
/// About how many commands one script sends that counts.
const COMMANDS: u64 = 1_000;
/// Jobs with large headers, and their bytes; so many are more than a mebibyte.
const LARGE: usize = 400;
const LARGE_BYTES: usize = 8_000;
const LARGE_PER_SCRIPT: usize = 130;
const EXPIRY: Duration = Duration::from_secs(1);

fn start() -> ManualClock {
    ManualClock::new(Timestamp::from_ms(1_795_000_000_000).unwrap())
}

/// A store on a server of its own, which tells what each call costs it.
struct Measured {
    store: Arc<RedisStore>,
    client: Client,
    clock: ManualClock,
    server: Server,
    url: String,
}

impl Measured {
    async fn new() -> Self {
        let (server, clock) = (Server::start(&[]), start());
        let url = server.url();
        let store = Arc::new(RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap());
        let client = Client::new(store.clone());
        // A script that the server does not know yet is called twice.
        store.count(None).await.unwrap();
        store.sweep(1).await.unwrap();
        store.queue("mail", &QueueOp::Purge(1)).await.unwrap();
        store.act(&[client.make_id().into()], &Action::RunNow).await.unwrap();
        Self { store, client, clock, server, url }
    }

    /// How often the server was asked for something since it was started.
    fn calls(&self, command: &str) -> u64 {
        calls(&self.server.say(&["INFO", "commandstats"])).get(command).copied().unwrap_or_default()
    }

    /// How often it was asked for some members or fields of a large row, or to count them.
    fn looks(&self) -> u64 {
        ["zlexcount", "zrangebylex", "hmget"].map(|command| self.calls(command)).iter().sum()
    }

    /// How many scripts a call takes.
    async fn scripts<T>(&self, call: impl Future<Output = punctual::Result<T>>) -> (T, u64) {
        let before = self.calls("evalsha");
        let answer = call.await.unwrap();
        (answer, self.calls("evalsha") - before)
    }

    /// Large jobs that wait.
    async fn push_large(&self, expires_at: Option<When>) -> Vec<Target> {
        let headers = BTreeMap::from([("h".to_owned(), "1".repeat(LARGE_BYTES))]);
        let job = || NewJob {
            expires_at,
            headers: headers.clone(),
            ..NewJob::new(self.client.make_id(), "k", "mail", Payload::json("1"))
        };
        let jobs: Vec<NewJob> = (0..LARGE).map(|_| job()).collect();
        let targets = jobs.iter().map(|job| job.id.into()).collect();
        for (number, jobs) in (1..).zip(jobs.chunks(100)) {
            let answers = self.store.enqueue(CallId { instance: 7, number }, jobs).await.unwrap();
            assert!(answers.iter().all(punctual::store::Enqueued::is_new));
        }
        targets
    }
}

/// All queues of a store are counted and swept, some per script; one with a small limit reaches the last ones, too.
#[tokio::test]
async fn all_queues_are_counted_and_swept_some_per_script() {
    let of = Measured::new().await;
    let job = |n| {
        let queue = format!("q{n:05}");
        let expires_at = Some(When::In(EXPIRY));
        NewJob { expires_at, ..NewJob::new(of.client.make_id(), "k", &queue, Payload::json("1")) }
    };
    of.client.push((0..QUEUES).map(job).collect()).await.unwrap();

    let before = of.looks();
    let (counts, scripts) = of.scripts(of.store.count(None)).await;
    assert_eq!((counts.waiting, counts.due, counts.bytes), (QUEUES, QUEUES, QUEUES));
    // The first job of each queue, and how many are due with it.
    let (looks, expected) = (of.looks() - before, 2 * QUEUES);
    assert!((expected..expected + 100).contains(&looks), "{looks} commands");
    // Names are looked up in slices, and count as commands.
    assert!(
        (expected / COMMANDS..=(expected + QUEUES) / COMMANDS + 1).contains(&scripts),
        "{scripts} scripts"
    );

    of.clock.advance(EXPIRY);
    let mut expired = 0;
    for n in 1.. {
        let (swept, scripts) = of.scripts(of.store.sweep(250)).await;
        assert_eq!((swept.expired, swept.more), if n <= 12 { (250, true) } else { (0, false) }, "{n}");
        // It begins with the first queue, and ends where its limit is.
        assert_eq!(scripts, (n * 250).min(QUEUES).div_ceil(SLICE), "{n}");
        expired += swept.expired;
        if !swept.more {
            break;
        }
    }
    let counts = of.store.count(None).await.unwrap();
    assert_eq!((expired, counts.waiting, counts.cancelled), (QUEUES, 0, QUEUES));
    let one = of.store.count(Some("q02999")).await.unwrap();
    assert_eq!((one.total(), one.cancelled), (1, 1));
}

/// S13, S17: before a full server refuses a job it looks at some queues for what it may give up, and at others the next time.
#[tokio::test]
async fn a_refused_enqueue_looks_at_some_queues_and_the_next_one_at_others() {
    let of = Measured::new().await;
    let job = |n| NewJob::new(of.client.make_id(), "k", format!("q{n:05}"), Payload::json("1"));
    of.client.push((0..QUEUES).map(job).collect()).await.unwrap();
    // The last of them keeps a done job.
    let queues = vec![QueueRequest { queue: format!("q{:05}", QUEUES - 1), share: 1, at_most: 1 }];
    let batch = of.store.reserve(&Reserve { queues, ..reserve(1, 1) }).await.unwrap();
    let ack = Settlement { lease: batch.jobs[0].lease, verdict: Verdict::Ack };
    let _ = of.store.settle(&[ack], None).await.unwrap();

    of.server.say(&["CONFIG", "SET", "maxmemory", "1"]);
    for number in 1..=QUEUES.div_ceil(SLICE * 4) {
        let before = of.calls("evalsha");
        let call = CallId { instance: 9, number };
        let refused = of.store.enqueue(call, &[job(0)]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StoreFull);
        // Itself, again if something was given up, and four that look.
        let scripts = of.calls("evalsha") - before;
        assert!(scripts <= 6, "{scripts} scripts for one refused job");
    }
    assert_eq!(of.store.count(None).await.unwrap().done, 0, "each queue had its turn");
}

/// Names of queues stay; who counts or sweeps passes over those that hold nothing, until they get a job.
#[tokio::test]
async fn queues_that_hold_nothing_cost_nothing_to_count_and_keep_their_names() {
    let of = Measured::new().await;
    let names: Vec<String> = (0..QUEUES).map(|n| format!("q{n:05}")).collect();
    let job = |queue: &String| NewJob::new(of.client.make_id(), "k", queue, Payload::json("1"));
    let jobs: Vec<NewJob> = names.iter().map(job).collect();
    let ids: Vec<Target> = jobs.iter().map(|job| job.id.into()).collect();
    of.client.push(jobs).await.unwrap();
    let pause = |by: &str| QueueOp::Pause { by: by.to_owned(), reason: String::new() };
    of.store.queue(&names[1], &pause("ana")).await.unwrap();
    for ids in ids.chunks(1_000) {
        of.store.act(ids, &Action::Delete).await.unwrap();
    }
    let (_, scripts) = of.scripts(of.store.count(None)).await;
    // Some slices of names in one script.
    assert_eq!(scripts, QUEUES.div_ceil(SLICE * 4), "as long as nobody swept");
    while of.store.sweep(1_000).await.unwrap().more {}

    let looks = of.looks();
    let (counts, scripts) = of.scripts(of.store.count(None)).await;
    let looks_at_nothing = of.looks() - looks;
    assert_eq!((counts.total(), scripts, looks_at_nothing), (0, 1, 6));
    let (_, scripts) = of.scripts(of.store.sweep(1_000)).await;
    assert_eq!(scripts, 1);
    let mut listed: Vec<String> = Vec::new();
    loop {
        let page = of.store.queues(listed.last().map(String::as_str)).await.unwrap();
        assert!(page.len() <= 1_000);
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    assert_eq!(listed, names);

    // Those that get a job or other settings are counted again, whoever knew of them before; what was set of them is in force.
    let other = RedisStore::open(&of.url, Clock::Manual(of.clock.clone())).await.unwrap();
    for (number, (at, store)) in (1..).zip([(0, &*of.store), (1, &other), (QUEUES as usize - 1, &other)]) {
        store.enqueue(CallId { instance: 8, number }, &[job(&names[at])]).await.unwrap();
    }
    other.queue(&names[2], &pause("bob")).await.unwrap();
    let looks = of.looks();
    let (counts, scripts) = of.scripts(of.store.count(None)).await;
    assert_eq!((counts.waiting, scripts), (3, 1));
    // The first and the number of due jobs for each; and what their counters say.
    assert_eq!(of.looks() - looks, looks_at_nothing + 3 * 2 + 2);
    let queues = names
        .iter()
        .take(3)
        .map(|queue| QueueRequest { queue: queue.clone(), share: 1, at_most: 1 })
        .collect();
    let given = of.store.reserve(&Reserve { queues, ..reserve(9, 3) }).await.unwrap().jobs;
    assert_eq!(given.iter().map(|job| &job.job.queue).collect::<Vec<_>>(), [&names[0]], "one is paused");
    assert_eq!(of.store.audit(Audit::default()).await.unwrap().findings, []);
    assert_eq!(of.store.queues(None).await.unwrap(), names[..1_000]);
}

/// What a sweep does in several scripts is what the model does in one step, whatever the limit.
#[tokio::test]
async fn sweeps_of_many_queues_answer_as_the_model_does() {
    const QUEUES: u64 = 400;
    for limit in [7, 97, 1_000] {
        let server = Server::start(&[]);
        let (clock, other) = (start(), start());
        let redis = RedisStore::open(&server.url(), Clock::Manual(clock.clone())).await.unwrap();
        let stores: [Arc<dyn Store>; 2] =
            [Arc::new(redis), Arc::new(MemoryStore::new(Clock::Manual(other.clone())))];
        let maker = Client::new(stores[1].clone());
        for n in 0..QUEUES {
            let queue = format!("q{:03}", n * 7 % QUEUES);
            let job = |i: u64| {
                let job = NewJob::new(maker.make_id(), "k", &queue, Payload::json("1"));
                match i {
                    0 => NewJob { expires_at: Some(When::In(EXPIRY)), run_at: When::Now, ..job },
                    1 => NewJob { id: punctual::JobId::derived(&queue, None, "x"), ..job },
                    _ => NewJob { unique: Some(punctual::Unique::key("u").window(EXPIRY)), ..job },
                }
            };
            let jobs: Vec<NewJob> = (0..n % 4).map(job).collect();
            for store in &stores {
                let keep = if n % 3 == 0 { Keep::NOTHING } else { Keep { age_ms: 1_000, ..Keep::SHORT } };
                let settings = QueueSettings { done: keep, cancelled: keep, ..QueueSettings::default() };
                let set = store.queue(&queue, &QueueOp::Set(Box::new(settings))).await.unwrap();
                assert!(matches!(set, QueueReply::Info(_)));
                store.enqueue(CallId { instance: n, number: 1 }, &jobs).await.unwrap();
                if n % 5 == 0 {
                    let queues = vec![QueueRequest { queue: queue.clone(), share: 3, at_most: 3 }];
                    let call = CallId { instance: n, number: 1 };
                    let batch = store.reserve(&Reserve { call, queues, ..reserve(1, 3) }).await.unwrap();
                    let ack = |lease| Settlement { lease, verdict: Verdict::Ack };
                    let acks: Vec<_> = batch.jobs.iter().map(|reserved| ack(reserved.lease)).collect();
                    let _ = store.settle(&acks, None).await.unwrap();
                }
            }
        }
        let mut swept_in_all = Swept::default();
        for step in [EXPIRY, EXPIRY, Duration::from_hours(25)] {
            for (store, clock) in stores.iter().zip([&clock, &other]) {
                pass_time(&**store, clock, step).await;
            }
            loop {
                let (redis, model) = (stores[0].sweep(limit).await, stores[1].sweep(limit).await);
                let (redis, model) = (redis.unwrap(), model.unwrap());
                assert_eq!(redis, model, "limit {limit}");
                let counts = (stores[0].count(None).await.unwrap(), stores[1].count(None).await.unwrap());
                assert_eq!(counts.0, counts.1, "limit {limit}");
                swept_in_all.expired += model.expired;
                swept_in_all.removed += model.removed;
                swept_in_all.forgotten += model.forgotten;
                if !model.more {
                    break;
                }
            }
        }
        let Swept { expired, removed, forgotten, .. } = swept_in_all;
        assert!(100 < expired && 100 < removed && 300 < forgotten, "{swept_in_all:?}");
    }
}

/// Acts on large jobs take several scripts. A target that is named again, in the same script or in another one, meets what the
/// first naming left.
#[tokio::test]
async fn acts_on_large_jobs_take_several_scripts() {
    let of = Measured::new().await;
    let mut targets = of.push_large(None).await;
    let ids = targets.clone();
    // The last of the first script and the first of the second are the same; so are the first and the last of all.
    targets.insert(LARGE_PER_SCRIPT, ids[LARGE_PER_SCRIPT - 1].clone());
    targets.push(ids[0].clone());
    let again = |n: usize| n == LARGE_PER_SCRIPT || n == LARGE + 1;
    for (action, after) in [
        (Action::RescheduleBy(60_000), State::Waiting),
        (Action::Cancel { reason: None }, State::Cancelled),
        (Action::Retry, State::Waiting),
        (Action::Delete, State::Waiting),
    ] {
        let (acted, scripts) = of.scripts(of.store.act(&targets, &action)).await;
        assert_eq!(acted.len(), targets.len());
        for (n, acted) in acted.iter().enumerate() {
            let expected = match (&action, again(n), acted) {
                (Action::Delete, true, Acted::NotFound) => continue,
                (Action::RescheduleBy(_), ..) | (_, false, _) => {
                    matches!(acted, Acted::Done(_, state) if *state == after)
                }
                (_, true, _) => matches!(acted, Acted::WrongState(_, state) if *state == after),
            };
            assert!(expected, "{action:?} {n}: {acted:?}");
        }
        // What is not there any more is not read.
        let read = if action == Action::Delete { LARGE } else { targets.len() };
        assert_eq!(scripts, read.div_ceil(LARGE_PER_SCRIPT) as u64, "{action:?}");
    }
    assert_eq!(of.store.count(None).await.unwrap().total(), 0);
}

/// What ends, goes or is looked at is bounded in bytes as well.
#[tokio::test]
async fn large_jobs_are_purged_swept_and_audited_some_per_script() {
    let of = Measured::new().await;
    of.push_large(None).await;
    let (reply, scripts) = of.scripts(of.store.queue("mail", &QueueOp::Purge(LARGE - 1))).await;
    assert_eq!(reply, QueueReply::Purged { deleted: LARGE as u64 - 1, more: true });
    assert_eq!(scripts, LARGE.div_ceil(LARGE_PER_SCRIPT) as u64);
    let reply = of.store.queue("mail", &QueueOp::Purge(LARGE)).await.unwrap();
    assert_eq!(reply, QueueReply::Purged { deleted: 1, more: false });

    let of = Measured::new().await;
    of.push_large(Some(When::In(EXPIRY))).await;
    let (mut audit, mut checked) = (Audit::default(), 0);
    loop {
        let slice = of.store.audit(audit.clone()).await.unwrap();
        assert_eq!(slice.findings, []);
        // With the one that makes it a mebibyte.
        assert!(slice.checked as usize <= LARGE_PER_SCRIPT + 1, "{}", slice.checked);
        checked += slice.checked as usize;
        match slice.next {
            Some(next) => audit.from = next,
            None => break,
        }
    }
    // All records, all that wait, and all that expire.
    assert!(3 * LARGE <= checked, "{checked}");

    of.clock.advance(EXPIRY);
    let (swept, scripts) = of.scripts(of.store.sweep(1_000)).await;
    let Swept { expired, removed, forgotten, more, .. } = swept;
    assert_eq!((expired, removed, forgotten, more), (LARGE as u64, 0, 0, false));
    assert_eq!(scripts, LARGE.div_ceil(LARGE_PER_SCRIPT) as u64);
    assert_eq!(of.store.count(None).await.unwrap().cancelled, LARGE as u64);
}

/// Long payloads are not read, but to free their memory takes time, too.
#[tokio::test]
async fn long_payloads_are_removed_some_per_script() {
    const MEBIBYTE: usize = 1 << 20;
    let of = Measured::new().await;
    let mut number = 0;
    let mut push = async || -> Vec<Target> {
        let mut all = Vec::new();
        for _ in 0..40 {
            number += 1;
            let payload = Payload::json(vec![b'1'; MEBIBYTE]);
            let job = NewJob::new(of.client.make_id(), "k", "mail", payload);
            all.push(job.id.into());
            of.store.enqueue(CallId { instance: 7, number }, &[job]).await.unwrap();
        }
        all
    };
    push().await;
    // A script ends once it has read a mebibyte, and the listing with four.
    let list = List { filter: Filter::all(), after: None, limit: 40 };
    let (page, scripts) = of.scripts(of.store.list(&list)).await;
    assert!((4..6).contains(&page.jobs.len()) && page.jobs.len() as u64 <= scripts, "{scripts}");
    let (reply, scripts) = of.scripts(of.store.queue("mail", &QueueOp::Purge(1_000))).await;
    assert_eq!((reply, scripts), (QueueReply::Purged { deleted: 40, more: false }, 3));

    let all = push().await;
    of.store.act(&all, &Action::Cancel { reason: None }).await.unwrap();
    pass_time(&*of.store, &of.clock, Duration::from_hours(24 * 400)).await;
    let (swept, scripts) = of.scripts(of.store.sweep(1_000)).await;
    assert_eq!((swept.removed, swept.more, scripts), (40, false, 3));

    push().await;
    of.client
        .queue("mail")
        .set(QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() })
        .await
        .unwrap();
    let mut numbers = 1..;
    let mut run = async || -> Vec<Settlement> {
        let mut acks = Vec::new();
        for number in numbers.by_ref().take(40) {
            let runs = of.store.reserve(&reserve(number, 50)).await.unwrap().jobs;
            acks.extend(runs.iter().map(|run| Settlement { lease: run.lease, verdict: Verdict::Ack }));
        }
        acks
    };
    let acks = run().await;
    // The server does not know this script yet.
    of.store.settle(&acks[..1], None).await.unwrap();
    let (settled, scripts) = of.scripts(of.store.settle(&acks[1..], None)).await;
    assert_eq!((settled.0.len(), scripts), (39, 2));
    assert_eq!(of.server.say(&["EXISTS", &super::key(&of.url, "b")]), "0");
    assert_eq!(of.store.count(None).await.unwrap().total(), 0);

    // A bound of retention is met whatever the payloads have.
    let two = QueueSettings { done: Keep { count: 2, ..Keep::SHORT }, ..QueueSettings::default() };
    of.client.queue("mail").set(two).await.unwrap();
    push().await;
    let acks = run().await;
    of.store.settle(&acks, None).await.unwrap();
    assert_eq!(of.store.count(None).await.unwrap().done, 2);
}

/// S17: an ack of a job that is kept needs a sweep only if a bound could be exceeded by more than a sixteenth of it. Then the bound is
/// met again, so that a queue that keeps as many jobs as it may is not swept with each ack.
#[tokio::test]
async fn most_acks_need_no_sweep_and_each_leaves_what_the_bounds_allow() {
    const AGE: Duration = Duration::from_secs(10);
    let of = Measured::new().await;
    let done = Keep { age_ms: AGE.as_millis() as u64, count: 100, bytes: 1 << 20 };
    of.client.queue("mail").set(QueueSettings { done, ..QueueSettings::default() }).await.unwrap();
    let mut number = 0;
    let push = async |count: usize, bytes: usize| {
        let payload = Payload::json(vec![b'1'; bytes]);
        let job = || NewJob::new(of.client.make_id(), "k", "mail", payload.clone());
        for _ in 0..count.div_ceil(5) {
            of.client.push((0..5).map(|_| job()).collect()).await.unwrap();
        }
    };
    let mut ack = async || {
        number += 1;
        let batch = of.store.reserve(&reserve(number, 1)).await.unwrap();
        let ack = Settlement { lease: batch.jobs[0].lease, verdict: Verdict::Ack };
        let _ = of.store.settle(&[ack], None).await.unwrap();
    };
    let done = async || of.store.count(Some("mail")).await.unwrap().done;
    push(400, 200).await;
    // A sweep counts the jobs of each state.
    let looks = of.calls("zlexcount");
    for _ in 0..90 {
        ack().await;
    }
    let looks = of.calls("zlexcount") - looks;
    assert!(looks <= 40, "{looks} looks for 90 acks");
    assert_eq!(done().await, 90);
    for n in 91..=200 {
        ack().await;
        assert_eq!(done().await, if n <= 106 { n } else { 100 + (n - 107) % 7 }, "{n}");
    }
    let looks = of.calls("zlexcount");
    for _ in 0..70 {
        ack().await;
    }
    let looks = of.calls("zlexcount") - looks;
    assert!(looks <= 40, "{looks} looks for 70 acks at the bound");
    let nearly = Duration::from_millis(9_999);
    of.clock.advance(nearly);
    ack().await;
    assert_eq!(done().await, 103);
    of.clock.advance(AGE.saturating_sub(nearly));
    ack().await;
    assert_eq!(done().await, 2, "those of before are past their age");
    // Jobs that end after a step back of the clock are past their age earlier than those of before.
    let before = of.clock.now();
    of.clock.set(Timestamp::from_ms(before.as_ms() - AGE.as_millis() as u64 / 2).unwrap());
    ack().await;
    assert_eq!(done().await, 3);
    of.clock.set(before.after(AGE / 2));
    ack().await;
    assert_eq!(done().await, 3, "the one of the step back is gone");
    of.clock.advance(AGE);
    push(30, 100_000).await;
    while 30 < of.store.count(Some("mail")).await.unwrap().waiting {
        ack().await;
    }
    for _ in 0..30 {
        ack().await;
        assert!(done().await <= 106);
    }
    assert!((10..=11).contains(&done().await), "ten of them are a mebibyte, and a sixteenth more is eleven");
    // Smaller bounds hold at once, also after the sweep of a worker that starts.
    for is_swept in [false, true] {
        for count in [100, 2] {
            push(10, 200).await;
            let done = Keep { age_ms: AGE.as_millis() as u64, count, bytes: 1 << 20 };
            of.client.queue("mail").set(QueueSettings { done, ..QueueSettings::default() }).await.unwrap();
            if is_swept {
                let _ = of.store.sweep(1_000).await.unwrap();
            }
            ack().await;
            ack().await;
            ack().await;
        }
        assert_eq!(done().await, 2, "{is_swept}");
    }
}
