//! Damage that something else did: entries of each key are changed in all ways, and whole keys are removed.

use std::{collections::BTreeMap, sync::Arc};

use punctual::{
    Timestamp,
    store::{
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

/// A whole key is gone. Left out: records and payloads, which nothing else has, and the state, without which a store is refused.
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
            let of = if *table == "i" { Of::Queue } else { Of::Order };
            let found = damaged.judge(of, looks_first).await;
            if !found.is_empty() {
                wrong.push(format!("{table} {looks_first}: {}", found.join("; ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
