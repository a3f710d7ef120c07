//! A full server refuses with a typed error, gives up what it may, and drains.

use punctual::{
    Client, ErrorKind,
    store::{Call, Enqueued, Keep, QueueSettings, Settlement, Store, Verdict},
};

use super::{jobs, open, reserve, server::Server};

/// S17: a full server refuses new jobs with a typed error, and writes nothing for them; waiting and running ones drain all
/// the same; then there is room again.
#[tokio::test]
async fn a_full_server_drains() {
    let server = Server::start(&["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"]);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    client
        .queue("mail")
        .set(QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() })
        .await
        .unwrap();
    let mut enqueued = 0;
    let error = loop {
        let call = Call { instance: 7, number: enqueued + 1 };
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
        let batch = store.reserve(&reserve(number, 50)).await.unwrap();
        if batch.jobs.is_empty() {
            break;
        }
        let leases: Vec<_> = batch.jobs.iter().map(|reserved| reserved.lease).collect();
        let _ = store.extend(&leases).await.unwrap();
        let settle = |lease| Settlement { lease, verdict: Verdict::Ack };
        let acks: Vec<_> = leases.into_iter().map(settle).collect();
        done += store.settle(&acks, None).await.unwrap().0.len() as u64;
    }
    assert_eq!(done, enqueued);
    assert_eq!(client.count(None).await.unwrap().total(), 0);
    let call = Call { instance: 7, number: enqueued + 1 };
    assert!(store.enqueue(call, &jobs(&client, 1)).await.unwrap()[0].is_new());
}

/// S17: before a full server refuses a job, it gives up done jobs that it keeps.
#[tokio::test]
async fn kept_jobs_make_room() {
    let server = Server::start(&["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"]);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    // Several times what fits.
    for number in 1..=1_000 {
        let answers = store.enqueue(Call { instance: 7, number }, &jobs(&client, 1)).await.unwrap();
        assert!(matches!(answers[0], Enqueued::Inserted { .. }), "{number}");
        let batch = store.reserve(&reserve(number, 1)).await.unwrap();
        let ack = Settlement { lease: batch.jobs[0].lease, verdict: Verdict::Ack };
        let _ = store.settle(&[ack], None).await.unwrap();
    }
    let counts = client.count(None).await.unwrap();
    assert_eq!(counts.total(), counts.done);
    assert!(counts.done < 1_000);
}
