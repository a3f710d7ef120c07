//! Records that something else has written over: nobody can run them, and they harm nobody else.

use punctual::{
    Client, Filter, State,
    store::{Settlement, Store, Verdict},
};

use crate::{jobs, open, reserve, server::Server};

/// What may stand where a record of ours stood: a byte, a part, text, and one whose options are no JSON.
#[tokio::test]
async fn what_can_not_be_read_ends_dead_and_harms_nobody() {
    let server = Server::start(&[]);
    let url = server.url();
    let (key, store) = (format!("{}:{{0}}:j", url.split_once("prefix=").unwrap().1), open(&url).await);
    let client = Client::new(store.clone());
    let mut raw = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let written = client.push(jobs(&client, 8)).await.unwrap();
    let ids: Vec<_> = written.iter().map(|answer| answer.id().unwrap()).collect();
    for (n, id) in ids.iter().enumerate().take(4) {
        let whole: Vec<u8> = redis::cmd("HGET").arg(&key).arg(id.as_bytes()).query(&mut raw).unwrap();
        let torn = match n {
            0 => vec![0],
            1 => whole[..10].to_vec(),
            2 => vec![b'x'; 100],
            _ => whole.iter().enumerate().map(|(at, byte)| if at == 16 { 0xff } else { *byte }).collect(),
        };
        let () = redis::cmd("HSET").arg(&key).arg(id.as_bytes()).arg(torn).query(&mut raw).unwrap();
    }
    let batch = store.reserve(&reserve(1, 8)).await.unwrap();
    assert_eq!(batch.jobs.iter().map(|reserved| reserved.job.id).collect::<Vec<_>>(), ids[4..]);
    let ack = |lease| Settlement { lease, verdict: Verdict::Ack };
    let acks: Vec<_> = batch.jobs.iter().map(|reserved| ack(reserved.lease)).collect();
    store.settle(&acks, None).await.unwrap();
    let counts = client.count(None).await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead, counts.done), (0, 0, 4, 4));
    let dead = Filter::all().state([State::Dead]);
    let page = client.list(&punctual::store::List { filter: dead, after: None, limit: 10 }).await.unwrap();
    assert!(page.jobs.iter().all(|job| job.reason.as_deref() == Some("corrupt")), "{:#?}", page.jobs);
    assert_eq!(page.jobs.len(), 4);
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
}
