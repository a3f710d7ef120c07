//! A full server refuses with a typed error, gives up what it may, and drains.

use std::time::{Duration, Instant};

use punctual::{
    Client, ErrorKind,
    store::{CallId, Enqueued, Keep, QueueSettings, Settlement, Store, Verdict},
};

use super::{drill::Drill, jobs, open, reserve, server::Server};

/// What a server may use. Scripts take up to 5 MB of it, and garbage of theirs counts until they run again.
const MEMORY: [&str; 4] = ["--maxmemory", "12mb", "--maxmemory-policy", "noeviction"];
/// Several times the jobs that fit there, of 10,000 bytes each.
const MANY: u64 = 3_000;
/// Done jobs that a server keeps until it is full.
const KEPT: u32 = 500;
/// So many are seen.
const REFUSALS: u32 = 5;
/// How long the fastest of them may take, sweeping included.
const REFUSED_MAX: Duration = Duration::from_secs(1);

/// S17: a full server refuses new jobs with a typed error, and writes nothing for them; waiting and running ones drain all
/// the same; then there is room again.
#[tokio::test]
async fn a_full_server_drains() {
    let server = Server::start(&MEMORY);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    client
        .queue("mail")
        .set(QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() })
        .await
        .unwrap();
    let mut enqueued = 0;
    let error = loop {
        let call = CallId { instance: 7, number: enqueued + 1 };
        match store.enqueue(call, &jobs(&client, 1)).await {
            Ok(answers) => assert!(answers[0].is_new()),
            Err(error) => break error,
        }
        enqueued += 1;
    };
    assert_eq!(error.kind(), ErrorKind::StoreFull);
    assert!(100 < enqueued);
    assert_eq!(
        client.count(None).await.unwrap().waiting,
        enqueued,
        "nothing was written for the refused one"
    );

    let mut done = 0;
    for number in 1.. {
        // One job takes another path through the scripts than many do.
        let n = if number % 2 == 0 { 1 } else { 50 };
        let batch = store.reserve(&reserve(number, n)).await.unwrap();
        if batch.jobs.is_empty() {
            break;
        }
        let leases: Vec<_> = batch.jobs.iter().map(|reserved| reserved.lease).collect();
        let _ = store.extend(&leases.iter().map(|lease| (*lease).into()).collect::<Vec<_>>()).await.unwrap();
        let settle = |lease| Settlement { lease, verdict: Verdict::Ack };
        let acks: Vec<_> = leases.into_iter().map(settle).collect();
        done += store.settle(&acks, None).await.unwrap().0.len() as u64;
    }
    assert_eq!(done, enqueued);
    assert_eq!(client.count(None).await.unwrap().total(), 0);
    let call = CallId { instance: 7, number: enqueued + 1 };
    assert!(store.enqueue(call, &jobs(&client, 1)).await.unwrap()[0].is_new());
}

/// S17: before a full server refuses a job, it gives up done jobs that it keeps.
#[tokio::test]
async fn kept_jobs_make_room() {
    let server = Server::start(&MEMORY);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    for number in 1..=MANY {
        let answers = store.enqueue(CallId { instance: 7, number }, &jobs(&client, 1)).await.unwrap();
        assert!(matches!(answers[0], Enqueued::Inserted { .. }), "{number}");
        let batch = store.reserve(&reserve(number, 1)).await.unwrap();
        let ack = Settlement { lease: batch.jobs[0].lease, verdict: Verdict::Ack };
        let _ = store.settle(&[ack], None).await.unwrap();
    }
    let counts = client.count(None).await.unwrap();
    assert_eq!(counts.total(), counts.done);
    assert!(counts.done < MANY);
}

/// S17: the same, one after the other: kept done jobs go first, then new ones are refused at once, what waits drains, and
/// there is room again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_gives_up_what_it_keeps_refuses_drains_and_takes_again() {
    let server = Server::start(&MEMORY);
    let url = server.url();
    let store = open(&url).await;
    let client = Client::new(store.clone());
    let mut drill = Drill::begin("a full server", &url).await;
    drill.push(KEPT).await;
    for number in 1..=u64::from(KEPT) / 50 {
        let batch = store.reserve(&reserve(number, 50)).await.unwrap();
        let ack = |lease| Settlement { lease, verdict: Verdict::Ack };
        let acks: Vec<_> = batch.jobs.iter().map(|reserved| ack(reserved.lease)).collect();
        let _ = store.settle(&acks, None).await.unwrap();
    }
    assert_eq!(drill.done().await, u64::from(KEPT));

    let enqueue = async |number| store.enqueue(CallId { instance: 7, number }, &jobs(&client, 1)).await;
    let mut enqueued = 0;
    while enqueue(enqueued + 1).await.is_ok() {
        enqueued += 1;
    }
    let counts = client.count(None).await.unwrap();
    assert_eq!((counts.waiting, counts.done), (enqueued, 0), "what it keeps goes first");
    let mut fastest = Duration::MAX;
    let mut refused = 0;
    while refused < REFUSALS {
        let begin = Instant::now();
        match enqueue(enqueued + 1).await {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StoreFull);
                fastest = fastest.min(begin.elapsed());
                refused += 1;
            }
            // What the server itself needs comes and goes: some still find room, until there is none.
            Ok(_) => enqueued += 1,
        }
    }
    assert!(fastest < REFUSED_MAX, "{fastest:?}");

    drill.work(1, &url).await;
    let drained = drill.drained().await;
    println!(
        "full: {KEPT} done jobs given up, {enqueued} waiting, refused within {} us, drained in {} ms",
        fastest.as_micros(),
        drained.as_millis()
    );
    assert!(enqueue(enqueued + 1).await.unwrap()[0].is_new());
}
