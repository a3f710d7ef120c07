//! Live pages: the stream of changes, who gets it, when it ends, and what it costs the store.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

mod dashboard {
    pub(crate) mod stream;
}

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::http::StatusCode;
use dashboard::stream::{Site, Stream};
use futures_util::future::join_all;
use punctual::{
    CancellationToken, Client, NewJob, Payload,
    testing::{Fault, FaultyStore, TestQueue},
};
use punctual_server::{
    DashboardOptions,
    token::{self, NewToken, Role},
};
use tokio::time::{Instant, sleep, timeout};

/// Longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(20);

async fn push(client: &Client) {
    let job = NewJob::new(client.make_id(), "mail.send", "mail", Payload::json("1"));
    client.push(vec![job]).await.unwrap();
}

/// A client whose calls to the store are counted.
fn counted(t: &TestQueue) -> (Client, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let store = FaultyStore::new(Arc::clone(t.client.store()), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Fault::Pass
    });
    (Client::new(Arc::new(store)), calls)
}

#[tokio::test(start_paused = true)]
async fn a_change_is_streamed_within_two_seconds_and_nothing_else_is() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, &CancellationToken::new());
    let mut stream = site.listen(None).await;
    assert_eq!(stream.next().await.unwrap(), "retry: 2000\n: listening\n\n");
    assert_eq!(stream.event().await, "{\"counts\":1,\"queues\":1}");
    assert!(timeout(Duration::from_millis(3_500), stream.event()).await.is_err(), "nothing has changed");
    push(&t.client).await;
    let said = timeout(Duration::from_secs(2), stream.event()).await.unwrap();
    assert!(said.starts_with("{\"counts\":2,"), "{said}");
    // The names of queues are read less often.
    assert_eq!(timeout(LONG, stream.event()).await.unwrap(), "{\"counts\":2,\"queues\":2}");
    // A page that comes later gets what is true now at once.
    let mut second = site.listen(None).await;
    assert_eq!(
        timeout(Duration::from_millis(1), second.event()).await.unwrap(),
        "{\"counts\":2,\"queues\":2}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_page_gets_the_latest_change_only() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, &CancellationToken::new());
    let mut stream = site.listen(None).await;
    stream.event().await;
    for _ in 0..10 {
        push(&t.client).await;
        sleep(Duration::from_secs(2)).await;
    }
    let said = stream.event().await;
    assert!(said.starts_with("{\"counts\":2,") || said.starts_with("{\"counts\":11,"), "{said}");
    assert!(timeout(Duration::from_secs(5), stream.event()).await.is_err(), "one event for all changes");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_has_a_heartbeat_every_15_seconds() {
    let t = TestQueue::new();
    let mut stream = Site::new(&t.client, &CancellationToken::new()).listen(None).await;
    stream.event().await;
    let begin = Instant::now();
    assert_eq!(stream.next().await.unwrap(), ":\n\n");
    let took = begin.elapsed();
    assert!(Duration::from_secs(14) < took && took < Duration::from_secs(16), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn one_watcher_reads_for_all_pages_and_none_without_pages() {
    let t = TestQueue::new();
    let (client, calls) = counted(&t);
    let site = Site::dashboard(&client, DashboardOptions::default());
    for n in [0, 1, 1_000] {
        let mut streams = Vec::new();
        for _ in 0..n {
            let mut stream = site.listen(None).await;
            stream.event().await;
            streams.push(stream);
        }
        let before = calls.load(Ordering::Relaxed);
        sleep(Duration::from_secs(100)).await;
        let calls = calls.load(Ordering::Relaxed) - before;
        println!("{n} pages: {calls} calls to the store in 100 s");
        // Once a minute the server looks for operations that another one has left.
        let expected = if n == 0 { 0..=2 } else { 145..=167 };
        assert!(expected.contains(&calls), "{n} pages: {calls} calls");
        drop(streams);
        sleep(Duration::from_secs(3)).await;
    }
    // Pages that come and go do not make it read more often.
    let before = calls.load(Ordering::Relaxed);
    for _ in 0..100 {
        drop(site.listen(None).await);
        sleep(Duration::from_millis(100)).await;
    }
    let calls = calls.load(Ordering::Relaxed) - before;
    assert!(calls <= 28, "{calls} calls in 10 s");
}

#[tokio::test(start_paused = true)]
async fn open_overviews_share_one_rendering_a_second() {
    let t = TestQueue::new();
    push(&t.client).await;
    let (client, calls) = counted(&t);
    let site = Site::dashboard(&client, DashboardOptions::default());
    site.get("/", None).await;
    let one = calls.swap(0, Ordering::Relaxed);
    let mut streams = Vec::new();
    for _ in 0..500 {
        streams.push(site.listen(None).await);
    }
    streams[0].event().await;
    calls.store(0, Ordering::Relaxed);
    for second in 0..10 {
        let pages = join_all((0..500).map(|_| site.get("/", None))).await;
        assert!(pages.iter().all(|page| page.0 == StatusCode::OK && page == &pages[0]), "{second}");
        sleep(Duration::from_secs(1)).await;
    }
    let all = calls.load(Ordering::Relaxed);
    println!("one page: {one} calls; 500 pages, 10 times in 10 s: {all} calls");
    // Ten renderings, and what the watcher reads.
    assert!(all <= 10 * one + 20, "{all} calls");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_fetched_because_of_a_change_shows_it() {
    let t = TestQueue::new();
    let site = Site::dashboard(&t.client, DashboardOptions::default());
    let mut stream = site.listen(None).await;
    stream.event().await;
    for n in 1..=5 {
        // A rendering just before the watcher looks.
        sleep(Duration::from_millis(990)).await;
        site.get("/", None).await;
        push(&t.client).await;
        stream.event().await;
        let (_, page) = site.get("/", None).await;
        assert!(page.contains(&format!("<span class=\"value\">{n}</span>")), "{n}: {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_asked_once_a_second_for_all_overviews() {
    let t = TestQueue::new();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let store = FaultyStore::new(Arc::clone(t.client.store()), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Fault::Before
    });
    let site = Site::dashboard(&Client::new(Arc::new(store)), DashboardOptions::default());
    let _stream = site.listen(None).await;
    let pages = join_all((0..100).map(|_| site.get("/", None))).await;
    for (status, text) in &pages {
        assert_eq!(*status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("Store unavailable"), "{text}");
    }
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls <= 10, "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn a_page_too_many_is_refused_and_gets_the_next_free_place() {
    let t = TestQueue::new();
    let site = Site::dashboard(&t.client, DashboardOptions::default());
    let mut streams = Vec::new();
    for _ in 0..5_000 {
        streams.push(site.listen(None).await);
    }
    let (status, text) = site.refused(None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("Too many live pages"), "{text}");
    streams.pop();
    site.listen(None).await;
}

/// The stream of the API.
const OF_API: &str = "/api/v1/events";

#[tokio::test(start_paused = true)]
async fn a_program_gets_counts_and_queues_at_once_and_when_they_change() {
    let t = TestQueue::new();
    let site = Site::new(&t.client, &CancellationToken::new());
    let mut stream = site.listen_at(OF_API, None).await;
    let counts = |waiting| {
        format!(
            "{{\"waiting\":{waiting},\"retrying\":0,\"due\":{waiting},\"running\":0,\"done\":0,\"dead\":0,\"cancelled\":0,\"bytes\":{waiting}}}"
        )
    };
    let queues = |names: &str| ("queues".to_owned(), format!("{{\"names\":[{names}]}}"));
    let begin = Instant::now();
    assert_eq!(stream.named().await, ("counts".to_owned(), counts(0)));
    assert_eq!(stream.named().await, queues(""));
    assert!(begin.elapsed() < Duration::from_millis(100), "at once: {:?}", begin.elapsed());
    assert!(timeout(Duration::from_millis(3_500), stream.named()).await.is_err(), "nothing has changed");
    push(&t.client).await;
    let said = timeout(Duration::from_secs(2), stream.named()).await.unwrap();
    assert_eq!(said, ("counts".to_owned(), counts(1)));
    assert_eq!(timeout(LONG, stream.named()).await.unwrap(), queues("\"mail\""));
    // One that comes later gets what is true now at once.
    let mut second = site.listen_at(OF_API, None).await;
    let soon = Duration::from_millis(1);
    assert_eq!(timeout(soon, second.named()).await.unwrap(), ("counts".to_owned(), counts(1)));
    assert_eq!(timeout(soon, second.named()).await.unwrap(), queues("\"mail\""));
    // One that comes after nobody listened does not get what was true then.
    drop((stream, second));
    sleep(Duration::from_secs(3)).await;
    push(&t.client).await;
    let (mut third, mut fourth) = (site.listen_at(OF_API, None).await, site.listen_at(OF_API, None).await);
    assert_eq!(third.named().await, ("counts".to_owned(), counts(2)));
    assert_eq!(fourth.named().await, ("counts".to_owned(), counts(2)));
}

#[tokio::test(start_paused = true)]
async fn pages_and_programs_share_one_watcher_and_its_places() {
    let t = TestQueue::new();
    let (client, calls) = counted(&t);
    // Without tokens: to look one up is a call, too.
    let site = Site::with_gate(&client, punctual_server::gate::Gate::open());
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(site.listen(None).await);
        streams.push(site.listen_at(OF_API, None).await);
    }
    streams[1].named().await;
    calls.store(0, Ordering::Relaxed);
    sleep(Duration::from_secs(100)).await;
    let calls = calls.load(Ordering::Relaxed);
    assert!((145..=165).contains(&calls), "{calls} calls in 100 s");
    while streams.len() < 5_000 {
        streams.push(site.listen_at(OF_API, None).await);
    }
    let (status, text) = site.refused_at(OF_API, None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("\"overloaded\""), "{text}");
    assert_eq!(site.refused(None).await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn the_stream_of_a_program_ends_with_its_token_and_with_the_server() {
    let t = TestQueue::new();
    let stop = CancellationToken::new();
    let make = async |queues: Option<Vec<String>>| {
        let new = NewToken { queues, ..NewToken::new("ana", Role::Read) };
        token::make(&t.client, &new, token::random().unwrap()).await.unwrap()
    };
    let (own, other, narrow) =
        (make(None).await, make(None).await, make(Some(vec!["mail".to_owned()])).await);
    let site = Site::new(&t.client, &stop);
    assert_eq!(site.refused_at(OF_API, None).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(site.refused_at(OF_API, Some(narrow.secret.expose())).await.0, StatusCode::FORBIDDEN);
    let mut stream = site.listen_at(OF_API, Some(own.secret.expose())).await;
    let mut others = site.listen_at(OF_API, Some(other.secret.expose())).await;
    stream.named().await;
    others.named().await;
    token::revoke(&t.client, &own.token.id).await.unwrap();
    timeout(LONG, async { while stream.next().await.is_some() {} }).await.unwrap();
    others.named().await;
    stop.cancel();
    timeout(LONG, async { while others.next().await.is_some() {} }).await.unwrap();
}

#[tokio::test]
async fn streams_end_with_the_server() {
    let t = TestQueue::new();
    let stop = CancellationToken::new();
    let site = Site::new(&t.client, &stop);
    let (mut first, mut second) = (site.listen(None).await, site.listen(None).await);
    first.event().await;
    stop.cancel();
    let ends = async |stream: &mut Stream| while stream.next().await.is_some() {};
    timeout(Duration::from_secs(1), async { tokio::join!(ends(&mut first), ends(&mut second)) })
        .await
        .unwrap();
    // One that comes afterwards ends at once.
    let mut late = site.listen(None).await;
    timeout(Duration::from_secs(1), ends(&mut late)).await.unwrap();
}

#[tokio::test]
async fn a_stream_needs_a_token_and_ends_when_it_is_revoked() {
    let t = TestQueue::new();
    let make = async |queues: Option<Vec<String>>| {
        let new = NewToken { queues, ..NewToken::new("ana", Role::Read) };
        token::make(&t.client, &new, token::random().unwrap()).await.unwrap()
    };
    let (own, other, narrow) =
        (make(None).await, make(None).await, make(Some(vec!["mail".to_owned()])).await);
    let site = Site::new(&t.client, &CancellationToken::new());
    assert_eq!(site.refused(None).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(site.refused(Some("pt_00000000_00")).await.0, StatusCode::UNAUTHORIZED);
    // Counters of the store say something of all queues.
    assert_eq!(site.refused(Some(narrow.secret.expose())).await.0, StatusCode::FORBIDDEN);

    let mut stream = site.listen(Some(own.secret.expose())).await;
    let mut others = site.listen(Some(other.secret.expose())).await;
    stream.event().await;
    token::revoke(&t.client, &own.token.id).await.unwrap();
    let begin = Instant::now();
    timeout(LONG, async { while stream.next().await.is_some() {} }).await.unwrap();
    // As long as a token is believed, and the time between two checks.
    assert!(begin.elapsed() < Duration::from_millis(1_500), "{:?}", begin.elapsed());
    push(&t.client).await;
    timeout(LONG, others.event()).await.unwrap();
}
