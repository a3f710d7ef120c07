//! Damage that something else did: entries of each key are changed in all ways, and whole keys are removed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use punctual::{
    JobId, NewJob, Payload, Timestamp,
    store::{
        Action, CallId, DocOp, DocReply, Placement, Precondition, QueueOp, QueueReply, QueueSettings,
        Settlement, Store, Verdict,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};

use crate::{
    damaged::{Damaged, Of, sample},
    key,
    server::Server,
};

/// The keys of which an entry is damaged.
const SETS: [&str; 10] = ["t", "o", "l", "e", "v", "g", "h", "n", "a", "k"];
const HASHES: [&str; 11] = ["j", "x", "r", "u", "p", "q", "i", "c", "y", "b", "m"];
/// The most entries of a key that are damaged, one in a store: these in each way if `PUNCTUAL_DAMAGE` is `all`, else some of them.
const ENTRIES_MAX: usize = 8;
/// There are so many cases at least.
const CASES_MIN: usize = 100;
/// A way to damage an entry, given its bytes; `None` removes it.
type Way = (&'static str, fn(&[u8]) -> Option<Vec<u8>>);

const SCORED: &str = "with a score";

/// Ways for a member of a sorted set, or a value of a hash.
const WAYS: [Way; 14] = [
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
    // Of a member alone: see `damage()`.
    (SCORED, |it| Some(it.to_vec())),
    ("random", |it| Some((0..it.len()).map(|at| (at * 167 + 89) as u8).collect())),
];

fn flipped(it: &[u8], at: usize) -> Vec<u8> {
    it.iter().enumerate().map(|(i, byte)| if i == at { byte ^ 0x10 } else { *byte }).collect()
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
            let score = i32::from(way.0 == SCORED);
            if other == *member && score == 0 {
                return false;
            }
            let () = redis::cmd("ZADD").arg(table).arg(score).arg(other).query(raw).unwrap();
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
    let url = server.url();
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
    let mut raw = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let damaged = Damaged::fill(Arc::new(store), clock).await;
    if !damage(&mut raw, &key(&url, table), is_set, n, way) {
        return None;
    }
    let of = match table {
        _ if way.0 == SCORED => Of::Order,
        "i" | "q" => Of::Queue,
        "j" | "b" => Of::Record { is_gone: ["removed", "empty"].contains(&way.0) },
        // An entry of a group stands for all its jobs.
        "h" | "y" => Of::Jobs(2),
        _ => Of::Jobs(1),
    };
    Some(damaged.judge(of, (n + way.0.len()).is_multiple_of(2)).await)
}

async fn all(tables: &[&str], is_set: bool) {
    let server = Server::start(&[]);
    let (mut cases, mut wrong) = (0, Vec::new());
    for table in tables {
        for way in &WAYS {
            // A sample has both queues.
            for n in sample(ENTRIES_MAX, if ["i", "q"].contains(table) { ENTRIES_MAX } else { 3 }) {
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

/// A whole key is gone. Left out: records and payloads, which nothing else has, and the state: see below.
#[tokio::test]
async fn a_key_that_is_gone_stops_nobody_else() {
    let server = Server::start(&[]);
    let mut wrong = Vec::new();
    for table in SETS.iter().chain(&HASHES).filter(|table| !["j", "b"].contains(table)) {
        for looks_first in [false, true] {
            let url = server.url();
            let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
            let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
            let mut raw = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
            let damaged = Damaged::fill(Arc::new(store), clock).await;
            let () = redis::cmd("DEL").arg(key(&url, table)).query(&mut raw).unwrap();
            let of = match *table {
                "i" => Of::Queue,
                "y" => Of::Jobs(0),
                _ => Of::Order,
            };
            let found = damaged.judge(of, looks_first).await;
            if !found.is_empty() {
                wrong.push(format!("{table} {looks_first}: {}", found.join("; ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A key is one of another type. Calls are refused, and so is a program that opens the store: it is told to move the key away.
#[tokio::test]
async fn a_key_of_another_type_is_named_and_can_be_moved_away() {
    let server = Server::start(&[]);
    let mut wrong = Vec::new();
    for table in SETS.iter().chain(&HASHES).filter(|table| !["j", "b"].contains(table)).chain(&["s"]) {
        let (url, clock) = (server.url(), ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap()));
        let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
        let mut raw = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        let damaged = Damaged::fill(Arc::new(store), clock.clone()).await;
        let key = key(&url, table);
        let () = redis::cmd("SET").arg(&key).arg("of another program").query(&mut raw).unwrap();
        let refused = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap_err();
        assert!(refused.to_string().contains(&key), "{refused}");
        let hint = refused.hint().unwrap().to_owned();
        assert!(hint.contains("RENAME KEY KEY:found") && hint.contains("punctual audit --repair"), "{hint}");
        let () = redis::cmd("RENAME").arg(&key).arg(format!("{key}:found")).query(&mut raw).unwrap();
        let is_made = RedisStore::restore(&url, Clock::Manual(clock)).await.unwrap();
        assert_eq!(is_made, *table == "s", "{table}");
        let of = if *table == "i" { Of::Queue } else { Of::Order };
        let found = damaged.judge(of, false).await;
        if !found.is_empty() {
            wrong.push(format!("{table}: {}", found.join("; ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The state of a shard is gone or damaged, as a whole or in a field. What is refused says what to do, and that is enough.
#[tokio::test]
async fn a_state_that_is_gone_or_damaged_is_made_again() {
    let server = Server::start(&[]);
    let (mut cases, mut refused, mut wrong) = (0, 0, Vec::new());
    for (shards, numbers) in [(1, 0..1), (3, 0..2)] {
        for number in numbers {
            for field in [
                None,
                Some("turn"),
                Some("layout"),
                Some("pins"),
                Some("identity"),
                Some("docs"),
                Some("aside"),
            ] {
                for way in [&WAYS[0], &WAYS[1], &WAYS[4]] {
                    let Some((is_refused, found)) = without_state(&server, shards, number, field, way).await
                    else {
                        continue;
                    };
                    (cases, refused) = (cases + 1, refused + usize::from(is_refused));
                    if !found.is_empty() {
                        wrong.push(format!(
                            "{number} of {shards}, {field:?} {}: {}",
                            way.0,
                            found.join("; ")
                        ));
                    }
                }
            }
        }
    }
    println!("{cases} cases, {refused} refused, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(30 <= cases && 10 <= refused, "{cases} cases, {refused} refused");
}

/// Returns whether a store was refused after one damage of its state, and what went wrong; `None` if there is no such field.
async fn without_state(
    server: &Server,
    shards: u16,
    number: u16,
    field: Option<&str>,
    way: &Way,
) -> Option<(bool, Vec<String>)> {
    let url = server.url();
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
    if 1 < shards {
        store.reshard(shards).await.unwrap();
    }
    // Its jobs have one place, also after the repair.
    let settings = QueueSettings { placement: Placement::Pinned, ..QueueSettings::default() };
    store.queue("pinned", &QueueOp::Set(Box::new(settings))).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    store.identity().await.unwrap();
    let put = DocOp::Put { key: "d".into(), precondition: Precondition::Always, value: b"1".to_vec() };
    let DocReply::Is(Some(before)) = store.doc(&put).await.unwrap() else { panic!() };
    let fence = fence(&store, 1).await;
    let damaged = Damaged::fill(Arc::clone(&store), clock.clone()).await;
    let mut raw = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let state = key(&url, "s").replace("{0}", &format!("{{{number}}}"));
    match field {
        None if way.0 != "removed" => return None,
        None => redis::cmd("DEL").arg(&state).query::<()>(&mut raw).unwrap(),
        Some(field) => {
            let row: Option<Vec<u8>> = redis::cmd("HGET").arg(&state).arg(field).query(&mut raw).unwrap();
            match way.1(&row?) {
                None => redis::cmd("HDEL").arg(&state).arg(field).query::<()>(&mut raw).unwrap(),
                Some(row) => {
                    redis::cmd("HSET").arg(&state).arg(field).arg(row).query::<()>(&mut raw).unwrap();
                }
            }
        }
    }
    let mut wrong = Vec::new();
    let opened = RedisStore::open(&url, Clock::Manual(clock.clone())).await;
    if let Err(error) = &opened
        && !error.hint().is_some_and(|hint| hint.contains("punctual audit --repair"))
    {
        wrong.push(format!("{error} {:?}", error.hint()));
    }
    let is_made = RedisStore::restore(&url, Clock::Manual(clock.clone())).await.unwrap();
    let is_again = RedisStore::restore(&url, Clock::Manual(clock.clone())).await.unwrap();
    if is_again || opened.is_err() && !is_made {
        wrong.push(format!("made: {is_made}, and again: {is_again}"));
    }
    let other = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
    let known = other.shards().await.unwrap().count;
    if known != shards {
        wrong.push(format!("a store of {shards} shards has {known}"));
    }
    if let Err(error) = other.identity().await {
        wrong.push(error.to_string());
    }
    if let QueueReply::Info(info) = other.queue("pinned", &QueueOp::Show).await.unwrap()
        && 1 < shards
        && info.settings.placement != Placement::Pinned
    {
        wrong.push("a pinned queue is spread".to_owned());
    }
    let put = DocOp::Put { key: "d".into(), precondition: Precondition::Always, value: b"2".to_vec() };
    match other.doc(&put).await {
        Ok(DocReply::Is(Some(after))) if before.version < after.version => {}
        answer => wrong.push(format!("a document: {answer:?} after {}", before.version)),
    }
    let other: Arc<dyn Store> = Arc::new(other);
    clock.advance(Duration::from_millis(1));
    let later = self::fence(&other, 2).await;
    if later <= fence {
        wrong.push(format!("fence {later} after {fence}"));
    }
    wrong.extend(damaged.judge(Of::Jobs(0), looks_first(number, way)).await);
    Some((opened.is_err(), wrong))
}

/// A store of several shards whose states are all gone is not made one of a single shard, and none is made where none is.
#[tokio::test]
async fn a_repair_guesses_no_number_of_shards_and_makes_no_store() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = RedisStore::open(&url, Clock::System).await.unwrap();
    store.reshard(3).await.unwrap();
    drop(Damaged::fill(Arc::new(store), ManualClock::new(Timestamp::from_ms(0).unwrap())).await);
    let mut raw = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*:s").query(&mut raw).unwrap();
    assert_eq!(keys.len(), 3);
    let () = redis::cmd("DEL").arg(&keys).query(&mut raw).unwrap();
    let error = RedisStore::restore(&url, Clock::System).await.unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("backup")), "{error}");
    let left: Vec<String> = redis::cmd("KEYS").arg("*:s").query(&mut raw).unwrap();
    assert!(left.is_empty(), "{left:?}");
    let nowhere = server.url();
    assert!(!RedisStore::restore(&nowhere, Clock::System).await.unwrap());
    let left: Vec<String> = redis::cmd("KEYS").arg("*:s").query(&mut raw).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// The calls after which a job of one of three shards is found.
const CALLS_MAX: u64 = 10;

/// Runs a job that dies, for the first time or again; returns its fence, which rises.
async fn fence(store: &Arc<dyn Store>, time: u64) -> u64 {
    let new = NewJob::new(JobId::derived("fence", None, "x"), "k", "fence", Payload::json("1"));
    let id = new.id;
    if time == 1 {
        store.enqueue(CallId { instance: 8, number: 1 }, &[new]).await.unwrap();
    } else {
        store.act(&[id.into()], &Action::Retry).await.unwrap();
    }
    for number in time * CALLS_MAX..(time + 1) * CALLS_MAX {
        let mut request = crate::reserve(number, 1);
        (request.call.instance, request.queues[0].queue) = (8, "fence".into());
        if let Some(run) = store.reserve(&request).await.unwrap().jobs.pop() {
            let verdict = Verdict::Dead { error: "x".into() };
            store.settle(&[Settlement { lease: run.lease, verdict }], None).await.unwrap();
            return run.lease.fence;
        }
    }
    panic!("the job is not found");
}

/// Whether other verbs come before a reserve.
fn looks_first(number: u16, way: &Way) -> bool {
    (usize::from(number) + way.0.len()).is_multiple_of(2)
}
