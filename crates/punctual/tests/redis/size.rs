//! S13: what a verb costs does not grow with what it does not hand out. Costs are commands that the server runs, in scripts and
//! beside them, and bytes that it sends: counts, which no machine changes.
//! Which payloads scripts read is in payload.rs: no counter of the server shows that.

use punctual::{
    Client, JobId, NewJob, Payload, Unique,
    job::{Concurrency, Filter},
    store::{Action, CallId, List, QueueRequest, Reserve, Settlement, Store, Take, Verdict},
};

use super::{open, reserve, server::Server};

/// What grows, one at a time, beside twelve jobs of which each is one of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grows {
    Payload,
    Queues,
    Groups,
    ConcurrencyKeys,
    UniqueKeys,
    JobsOfOneKey,
}

const ALL: [Grows; 6] = [
    Grows::Payload,
    Grows::Queues,
    Grows::Groups,
    Grows::ConcurrencyKeys,
    Grows::UniqueKeys,
    Grows::JobsOfOneKey,
];

/// A verb on one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Enqueue,
    Reserve,
    Settle,
    Take,
    Stats,
    List,
    Act,
}

/// Jobs in all but the large stores, and in those.
const SIZES: [usize; 2] = [12, 1_000];
/// Bytes of the smaller and of the larger payloads.
const BYTES: [usize; 2] = [1, 100 << 10];
/// Groups that one call may let in, and candidates that it may look at, beside the jobs that it hands out (S9, S16).
const GROUPS_EXTRA: u64 = 32;
const CANDIDATES_EXTRA: u64 = 256;
/// Commands that one of them costs at most.
const EACH: u64 = 6;

/// The most commands that a verb on one job may take, in a store of any size.
fn commands_max(verb: Verb, grows: Grows) -> u64 {
    let of_verb = match verb {
        Verb::Stats => 20,
        Verb::Reserve | Verb::Take => 40,
        Verb::Enqueue | Verb::Settle | Verb::Act => 34,
        // For a page of ten jobs fifty are looked at, and what holds each of them back.
        Verb::List => 140,
    };
    let looks = match (verb, grows) {
        // A call lets in so many groups that became runnable, and files them.
        (Verb::Reserve | Verb::Take, Grows::Groups) => GROUPS_EXTRA + 1,
        // It blocks so many jobs of a key that is full, each once in its life.
        (Verb::Reserve | Verb::Take, Grows::JobsOfOneKey) => CANDIDATES_EXTRA + 1,
        _ => 0,
    };
    of_verb + looks * EACH
}

/// The most bytes that the server may send where no payload is asked for: the answer, and the two looks at what it counts.
const SENT_MAX: u64 = 12_000;

fn queue_of(grows: Grows, n: usize) -> String {
    if grows == Grows::Queues { format!("q{n}") } else { "q0".to_owned() }
}

fn job(of: &Client, grows: Grows, n: usize, bytes: usize) -> NewJob {
    let payload = Payload::json(vec![b'1'; bytes]);
    let mut job = NewJob::new(of.make_id(), "k", queue_of(grows, n), payload);
    let key = |key: String| Some(Concurrency { key, limit: 1 });
    match grows {
        Grows::Payload | Grows::Queues => {}
        Grows::Groups => job.group = Some(format!("g{n}")),
        Grows::ConcurrencyKeys => job.concurrency = key(format!("c{n}")),
        Grows::UniqueKeys => job.unique = Some(Unique::key(format!("u{n}"))),
        Grows::JobsOfOneKey => job.concurrency = key("one".to_owned()),
    }
    job
}

/// Commands that the server ran, without those that ask for this, and bytes that it sent.
fn costs(server: &Server) -> (u64, u64) {
    let stats = server.say(&["INFO", "stats"]);
    let sent = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    let commands = super::console::calls(&server.say(&["INFO", "commandstats"]));
    // Time is asked for, and scripts are made known, by the way.
    let own = ["info", "time", "script|load", "script"];
    let commands = commands.iter().filter(|(name, _)| !own.contains(&name.as_str())).map(|(_, n)| n).sum();
    (commands, sent.unwrap().trim().parse().unwrap())
}

/// What each verb costs in a store of this size, the dearer one of two times.
async fn measure(server: &Server, grows: Grows, size: usize) -> Vec<(Verb, u64, u64)> {
    let store = open(&server.url()).await;
    let of = Client::new(store.clone());
    let (n, bytes) =
        if grows == Grows::Payload { (SIZES[0], BYTES[usize::from(size == SIZES[1])]) } else { (size, 1) };
    let jobs: Vec<NewJob> = (0..n).map(|n| job(&of, grows, n, bytes)).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    for (number, jobs) in (1..).zip(jobs.chunks(if bytes == 1 { 1_000 } else { 8 })) {
        store.enqueue(CallId { instance: 7, number }, jobs).await.unwrap();
    }
    let want = |number| Reserve {
        queues: vec![QueueRequest { queue: "q0".to_owned(), share: 1, at_most: 1 }],
        ..reserve(number, 1)
    };
    let mut all: Vec<(Verb, u64, u64)> = Vec::new();
    let mut leases = Vec::new();
    for round in 0..2 {
        let mut note = |verb, before: (u64, u64)| {
            let after = costs(server);
            let (commands, sent) = (after.0 - before.0, after.1 - before.1);
            match all.iter_mut().find(|(known, ..)| *known == verb) {
                Some((_, most, largest)) => (*most, *largest) = (commands.max(*most), sent.max(*largest)),
                None => all.push((verb, commands, sent)),
            }
        };
        let before = costs(server);
        let more = job(&of, grows, n + round, bytes);
        let more = NewJob { queue: "q0".to_owned(), ..more };
        store.enqueue(CallId { instance: 8, number: round as u64 + 1 }, &[more]).await.unwrap();
        note(Verb::Enqueue, before);
        let before = costs(server);
        store.act(&[ids[n - 1 - round].into()], &Action::RescheduleBy(0)).await.unwrap();
        note(Verb::Act, before);
        let before = costs(server);
        store.count(Some("q0")).await.unwrap();
        note(Verb::Stats, before);
        let before = costs(server);
        let list = List { filter: Filter::all().queue("q0"), after: None, limit: 10 };
        store.list(&list).await.unwrap();
        note(Verb::List, before);
        let before = costs(server);
        let batch = store.reserve(&want(round as u64 + 1)).await.unwrap();
        note(Verb::Reserve, before);
        leases.extend(batch.jobs.iter().map(|job| job.lease));
        let before = costs(server);
        let ack = leases.pop().map(|lease| Settlement { lease, verdict: Verdict::Ack });
        let _ = store.settle(&ack.into_iter().collect::<Vec<_>>(), None).await.unwrap();
        note(Verb::Settle, before);
        let before = costs(server);
        let take = Take { queue: "q0".to_owned(), n: 1, older_than: std::time::Duration::ZERO };
        store.take(&take).await.unwrap();
        note(Verb::Take, before);
    }
    all
}

#[tokio::test]
async fn a_verb_costs_no_more_in_a_store_that_has_more_of_anything() {
    let (server, mut wrong) = (Server::start(&[]), Vec::new());
    for grows in ALL {
        let small = measure(&server, grows, SIZES[0]).await;
        let large = measure(&server, grows, SIZES[1]).await;
        for ((verb, few, _), (_, many, sent)) in small.into_iter().zip(large) {
            let most = commands_max(verb, grows);
            if most < many {
                wrong.push(format!("{verb:?}, {grows:?}: {few} commands, then {many}, not {most} at most"));
            }
            let hands_out = matches!(verb, Verb::Reserve | Verb::Take | Verb::List);
            if grows == Grows::Payload && !hands_out && SENT_MAX < sent {
                wrong.push(format!("{verb:?}, {grows:?}: {sent} bytes are sent"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}
