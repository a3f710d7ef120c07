//! Damage that something else did: entries of each key are changed in all ways. Whatever it is, calls go on, every other job runs once, and an
//! audit finds a way out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use punctual::{
    Client, ErrorKind, JobId, NewJob, Payload, Priority, State, Timestamp, Unique, When,
    job::{Concurrency, Filter},
    store::{
        Action, CallId, List, QueueOp, QueueRequest, Reserve, Settlement, Store, Take, Upcoming, Verdict,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};

use crate::{key, server::Server};

/// The keys of which an entry is damaged.
const SETS: [&str; 10] = ["t", "o", "l", "e", "v", "g", "h", "n", "a", "k"];
const HASHES: [&str; 11] = ["j", "x", "r", "u", "p", "q", "i", "c", "y", "b", "m"];
/// The most entries of a key that are damaged, one in a store.
const ENTRIES_MAX: usize = 8;
/// There are so many cases at least.
const CASES_MIN: usize = 300;
/// So many calls run all jobs, with much to spare.
const CALLS_MAX: u64 = 120;
const QUEUE: &str = "mail";
const OTHER: &str = "bulk";
/// What the other queue is called after a repair if its name was gone, and jobs were enqueued under it.
const TAKEN: &str = "bulk.2";

/// A way to damage an entry, given its bytes; `None` removes it.
type Way = (&'static str, fn(&[u8]) -> Option<Vec<u8>>);

/// Ways for a member of a sorted set, or a value of a hash.
const WAYS: [Way; 13] = [
    ("removed", |_| None),
    ("empty", |_| Some(Vec::new())),
    ("of one byte", |it| Some(it[..1.min(it.len())].to_vec())),
    ("of four bytes", |it| Some(it[..4.min(it.len())].to_vec())),
    ("cut in half", |it| Some(it[..it.len() / 2].to_vec())),
    ("longer by one", |it| Some([it, b"\x01"].concat())),
    ("longer by a kilobyte", |it| Some([it, &[b'x'; 1_024]].concat())),
    ("flipped at its beginning", |it| Some(flipped(it, 0))),
    ("flipped at byte 3", |it| Some(flipped(it, 3))),
    ("flipped at byte 5", |it| Some(flipped(it, 5))),
    ("flipped in the middle", |it| Some(flipped(it, it.len() / 2))),
    ("flipped at its end", |it| Some(flipped(it, it.len().saturating_sub(1)))),
    ("random", |it| Some((0..it.len()).map(|at| (at * 167 + 89) as u8).collect())),
];

fn flipped(it: &[u8], at: usize) -> Vec<u8> {
    it.iter().enumerate().map(|(i, byte)| if i == at { byte ^ 0x10 } else { *byte }).collect()
}

struct Rig {
    url: String,
    clock: ManualClock,
    store: Arc<RedisStore>,
    client: Client,
    raw: redis::Connection,
    calls: u64,
    /// How often each job was reserved after the damage.
    runs: BTreeMap<JobId, u32>,
    /// The jobs of the other queue.
    others: BTreeSet<JobId>,
    wrong: Vec<String>,
    /// Whether the damage is to a queue itself.
    of_queue: bool,
    is_mended: bool,
    /// Whether it is to the record of a job.
    of_record: bool,
}

impl Rig {
    async fn at(server: &Server) -> Self {
        let url = server.url();
        let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
        let store = Arc::new(RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap());
        let raw = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        let client = Client::new(store.clone());
        Self {
            url,
            clock,
            client,
            store,
            raw,
            calls: 0,
            runs: BTreeMap::new(),
            others: BTreeSet::new(),
            wrong: Vec::new(),
            of_queue: false,
            is_mended: false,
            of_record: false,
        }
    }

    /// Jobs of each kind, in each place: waiting, blocked, running, done.
    async fn fill(&mut self) -> Vec<JobId> {
        let job = |queue: &str| NewJob::new(self.client.make_id(), "k", queue, Payload::json("1"));
        let mut all: Vec<NewJob> = (0..16).map(|_| job(QUEUE)).collect();
        for (at, new) in all.iter_mut().enumerate() {
            match at {
                0..3 => {}
                3..6 => new.group = Some(format!("g{}", at % 2)),
                6..9 => new.concurrency = Some(Concurrency { key: "c".into(), limit: 1 }),
                9 => new.expires_at = Some(When::In(Duration::from_hours(1))),
                10 => new.unique = Some(Unique::key("u")),
                11 => new.unique = Some(Unique::key("w").window(Duration::from_mins(10))),
                12 => new.options.priority = Some(Priority::High),
                13 => new.payload = Payload::json(vec![b'1'; 3_000]),
                _ => new.run_at = When::In(Duration::from_secs(30)),
            }
        }
        let others: Vec<_> = (0..3).map(|_| job(OTHER)).collect();
        self.others = others.iter().map(|job| job.id).collect();
        all.extend(others);
        let ids = all.iter().map(|job| job.id).collect();
        // Some are done, and some run, before the rest comes.
        let first: Vec<NewJob> = (0..4).map(|_| job(QUEUE)).collect();
        self.client.push(first).await.unwrap();
        let request = self.wants(4);
        let batch = self.store.reserve(&request).await.unwrap();
        let acks: Vec<_> = batch.jobs[..2]
            .iter()
            .map(|run| Settlement { lease: run.lease, verdict: Verdict::Ack })
            .collect();
        self.store.settle(&acks, None).await.unwrap();
        for new in all {
            self.client.push(vec![new]).await.unwrap();
        }
        ids
    }

    fn wants(&mut self, n: usize) -> Reserve {
        self.calls += 1;
        let queue = |name: &str| QueueRequest { queue: name.into(), share: n, at_most: n };
        Reserve {
            call: CallId { instance: 1, number: self.calls },
            worker: "w".into(),
            queues: [QUEUE, OTHER, TAKEN].map(queue).to_vec(),
            n,
            lease: None,
            company: true,
        }
    }

    /// Notes an error, unless it is of a queue whose name or settings are damaged, and says so.
    fn heard<T>(&mut self, what: &str, answer: punctual::Result<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) if self.of_queue && !self.is_mended && error.kind() == ErrorKind::Corrupt => None,
            Err(error) => {
                self.wrong.push(format!(
                    "{what}: {error} {:?}",
                    std::error::Error::source(&error).map(ToString::to_string)
                ));
                None
            }
        }
    }

    /// Runs what is due, until nothing is; a minute passes meanwhile.
    async fn drain(&mut self) {
        let mut idle = 0;
        for round in 0..CALLS_MAX {
            let request = self.wants(4);
            let answer = self.store.reserve(&request).await;
            let Some(batch) = self.heard("reserve", answer) else { return };
            for run in &batch.jobs {
                *self.runs.entry(run.job.id).or_default() += 1;
                // What a job says of itself may be what was damaged.
                if !self.of_record && self.others.contains(&run.job.id) != (run.job.queue != QUEUE) {
                    self.wrong.push(format!("a job runs in {}, which is not its queue", run.job.queue));
                }
            }
            let acks: Vec<_> =
                batch.jobs.iter().map(|run| Settlement { lease: run.lease, verdict: Verdict::Ack }).collect();
            if !acks.is_empty() {
                let answer = self.store.settle(&acks, None).await;
                self.heard("settle", answer);
            }
            idle = if batch.jobs.is_empty() { idle + 1 } else { 0 };
            let says_now = batch.more || batch.next_due.is_some_and(|due| due.is_zero());
            if batch.jobs.is_empty() && !says_now {
                self.clock.advance(Duration::from_secs(5));
            }
            if 20 <= idle {
                if says_now {
                    self.wrong.push(format!(
                        "a worker spins: work is said to be due now, and there is none ({round})"
                    ));
                }
                return;
            }
        }
        self.wrong.push("a worker finds no end".to_owned());
    }

    /// The other verbs: none of them fails.
    async fn look(&mut self, ids: &[JobId]) {
        let store = Arc::clone(&self.store);
        let answer = store.count(None).await;
        self.heard("count", answer);
        for states in [State::Waiting, State::Running, State::Done, State::Dead] {
            let list = List { filter: Filter::all().state([states]), after: None, limit: 100 };
            let answer = store.list(&list).await;
            self.heard("list", answer);
        }
        let upcoming = Upcoming { queue: None, bucket: Duration::from_secs(10), buckets: 9 };
        let answer = store.upcoming(&upcoming).await;
        self.heard("upcoming", answer);
        let answer = store.queue(QUEUE, &QueueOp::Show).await;
        self.heard("queue", answer);
        let answer = store.sweep(100).await;
        self.heard("sweep", answer);
        let answer = store.act(&[ids[2].into()], &Action::RescheduleBy(0)).await;
        self.heard("act", answer);
        let answer = store.take(&Take { queue: "none".into(), n: 1, older_than: Duration::ZERO }).await;
        self.heard("take", answer);
        let new = NewJob::new(self.client.make_id(), "k", OTHER, Payload::json("1"));
        self.others.insert(new.id);
        self.calls += 1;
        let call = CallId { instance: 2, number: self.calls };
        let answer = store.enqueue(call, &[new]).await;
        self.heard("enqueue", answer);
    }
}

/// Returns which of `len` entries is the one of number `n`.
fn spread(n: usize, len: usize) -> usize {
    if ENTRIES_MAX < len { n * len / ENTRIES_MAX } else { n }
}

/// Damages entry `n` of a key in one way. Returns whether there is such an entry that this changes.
fn damage(raw: &mut redis::Connection, table: &str, is_set: bool, n: usize, way: &Way) -> bool {
    if is_set {
        let all: Vec<Vec<u8>> = redis::cmd("ZRANGE").arg(table).arg(0).arg(-1).query(raw).unwrap();
        let all: Vec<_> = all.into_iter().filter(|member| member.len() < 100).collect();
        let Some(member) = all.get(spread(n, all.len())) else { return false };
        let () = redis::cmd("ZREM").arg(table).arg(member).query(raw).unwrap();
        if let Some(other) = way.1(member) {
            if other == *member {
                return false;
            }
            let () = redis::cmd("ZADD").arg(table).arg(0).arg(other).query(raw).unwrap();
        }
    } else {
        let all: BTreeMap<Vec<u8>, Vec<u8>> = redis::cmd("HGETALL").arg(table).query(raw).unwrap();
        let Some((field, value)) =
            all.iter().nth(spread(n, all.len())).map(|(field, value)| (field.clone(), value.clone()))
        else {
            return false;
        };
        match way.1(&value) {
            None => redis::cmd("HDEL").arg(table).arg(field).query::<()>(raw).unwrap(),
            Some(other) if other == value => return false,
            Some(other) => redis::cmd("HSET").arg(table).arg(field).arg(other).query::<()>(raw).unwrap(),
        }
    }
    true
}

/// Returns what went wrong after one damage; `None` if there is no such entry.
async fn tried(server: &Server, table: &str, is_set: bool, n: usize, way: &Way) -> Option<Vec<String>> {
    let mut rig = Rig::at(server).await;
    let ids = rig.fill().await;
    let name = key(&rig.url, table);
    if !damage(&mut rig.raw, &name, is_set, n, way) {
        return None;
    }
    rig.of_record = table == "j";
    rig.of_queue = ["i", "q"].contains(&table);
    // An entry of a group stands for all its jobs.
    let most = if ["h", "y"].contains(&table) { 2 } else { 1 };
    rig.look(&ids).await;
    rig.drain().await;
    let missing = |rig: &Rig| ids.iter().filter(|id| !rig.runs.contains_key(id)).count();
    if !rig.of_queue && most < missing(&rig) {
        rig.wrong.push(format!("{} jobs did not run", missing(&rig)));
    }
    for _ in 0..2 {
        let answer = rig.client.audit(true, |_| ()).await;
        rig.heard("audit --repair", answer);
    }
    rig.is_mended = true;
    let answer = rig.client.audit(false, |_| ()).await;
    if let Some(report) = rig.heard("audit", answer)
        && let Some(finding) = report.findings.first()
    {
        rig.wrong.push(format!("{} findings after two repairs, such as {finding:?}", report.findings.len()));
    }
    for id in &ids {
        if !rig.runs.contains_key(id) {
            match rig.store.act(&[(*id).into()], &Action::Retry).await {
                Err(error) if error.kind() != ErrorKind::Corrupt => rig.wrong.push(format!("retry: {error}")),
                _ => {}
            }
        }
    }
    rig.drain().await;
    // The job itself may be what was damaged.
    let lost = missing(&rig);
    if usize::from(["j", "b"].contains(&table)) < lost {
        rig.wrong.push(format!("{lost} jobs are lost"));
    }
    rig.wrong.dedup();
    Some(rig.wrong)
}

async fn all(tables: &[&str], is_set: bool) {
    let server = Server::start(&[]);
    let (mut cases, mut wrong) = (0, Vec::new());
    for table in tables {
        for way in &WAYS {
            for n in 0..ENTRIES_MAX {
                let Some(found) = tried(&server, table, is_set, n, way).await else { continue };
                cases += 1;
                if !found.is_empty() {
                    wrong.push(format!("{table} entry {n} {}: {}", way.0, found.join("; ")));
                }
            }
        }
    }
    println!("{cases} cases, {} wrong", wrong.len());
    assert!(CASES_MIN <= cases, "only {cases} cases: what is filled has too few entries");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn damage_of_a_member_stops_nobody_else() {
    all(&SETS, true).await;
}

#[tokio::test]
async fn damage_of_a_value_stops_nobody_else() {
    all(&HASHES, false).await;
}
