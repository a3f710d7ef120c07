//! Jobs that are handed over to JetStream, on a real server.

#![cfg(feature = "nats")]
#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

#[path = "support/nats.rs"]
mod nats;
#[path = "support/work.rs"]
mod work;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use async_nats::jetstream::{self, Context, message::StreamMessage, stream};
use nats::Server;
use punctual::{ErrorKind, State};
use punctual_forward::Forwarder;
use work::{END_MAX, Jobs, last_error};

/// A stream that takes what is below `jobs`.
async fn stream(server: &Server, more: stream::Config) -> Context {
    let client = async_nats::connect(server.place()).await.unwrap();
    let context = jetstream::new(client);
    let config = stream::Config { name: "JOBS".into(), subjects: vec!["jobs.>".into()], ..more };
    context.create_stream(config).await.unwrap();
    context
}

/// All messages of the stream.
async fn messages(server: &Server) -> Vec<StreamMessage> {
    let context = jetstream::new(async_nats::connect(server.place()).await.unwrap());
    let mut stream = context.get_stream("JOBS").await.unwrap();
    let n = stream.info().await.unwrap().state.messages;
    let mut messages = Vec::new();
    for sequence in 1..=n {
        messages.push(stream.get_raw_message(sequence).await.unwrap());
    }
    messages
}

fn forwarder(server: &Server, options: &str) -> Forwarder {
    Forwarder::to(&format!("nats://{}?{options}", server.place())).unwrap()
}

#[tokio::test]
async fn a_job_is_done_when_a_stream_has_it_with_all_that_goes_out() {
    let server = Server::start(&[], "");
    stream(&server, stream::Config::default()).await;
    let forwarder = forwarder(&server, "subject=jobs.{kind}.{header.tenant}");
    forwarder.check().await.unwrap();
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let job = jobs.mail().header("tenant", "acme").header("Nats-Rollup", "all").header("content-type", "x");
    let job = jobs.put(job).await;
    assert_eq!(jobs.ended(job.id).await.state, State::Done);

    let found = messages(&server).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].subject.as_str(), "jobs.email.send.acme");
    assert_eq!(found[0].payload, job.payload.bytes);
    let header = |name: &str| found[0].headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Nats-Msg-Id"), Some(jobs.outside(job.id).await));
    assert_eq!(header("Content-Type").as_deref(), Some("application/json"));
    assert_eq!(header("punctual-kind").as_deref(), Some("email.send"));
    assert_eq!(header("punctual-queue").as_deref(), Some("mail"));
    assert_eq!(header("tenant").as_deref(), Some("acme"));
    // A job gives the server no orders.
    assert_eq!((header("Nats-Rollup"), header("content-type")), (None, None));
    assert_eq!(forwarder.counts().forwarded, 1);
}

#[tokio::test]
async fn a_job_that_no_stream_takes_is_dead_with_the_reason() {
    let server = Server::start(&[], "");
    stream(&server, stream::Config::default()).await;
    let to_nobody = forwarder(&server, "subject=nobody");
    let error = to_nobody.check().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Invalid, "no stream takes the subject nobody")
    );
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&to_nobody);
    let job = jobs.put(jobs.mail().max_attempts(2)).await;
    let job = jobs.ended(job.id).await;
    assert_eq!((job.state, job.attempt), (State::Dead, 2));
    assert_eq!(last_error(&job), "no stream takes the subject nobody");
}

#[tokio::test]
async fn what_a_stream_or_the_server_does_not_take_is_refused_in_their_words() {
    let server = Server::start(&[], "max_payload: 2048");
    let full =
        stream::Config { max_messages: 1, discard: stream::DiscardPolicy::New, ..stream::Config::default() };
    stream(&server, full).await;
    let jobs = Jobs::new().await;
    let forwarder = forwarder(&server, "subject=jobs.{header.to}");
    let send = async |job| forwarder.send(&jobs.client, &jobs.put(job).await).await;
    let to = |to: &str| jobs.mail().header("to", to);
    let error = send(to("a").header("long", "x".repeat(4_000))).await.unwrap_err();
    assert!(error.contains("Payload size limit of 2048"), "{error}");
    send(to("a")).await.unwrap();
    let error = send(to("a")).await.unwrap_err();
    assert!(error.contains("maximum messages exceeded"), "{error}");
    for (bad, why) in [
        ("a b", "has a space or a control character"),
        ("a.*", "has a wildcard"),
        (">", "has a wildcard"),
        ("", "has an empty part between its dots"),
        ("a..b", "has an empty part between its dots"),
    ] {
        assert_eq!(send(to(bad)).await, Err(format!("the subject {:?} {why}", format!("jobs.{bad}"))));
    }
    for (name, value) in [("bad name", "x"), ("bad:name", "x"), ("böse", "x"), ("line", "a\r\nb: c")] {
        let error = send(to("a").header(name, value)).await.unwrap_err();
        assert!(error.contains("NATS"), "{error}");
    }
}

/// A job that chooses its subject could give orders to the server otherwise.
#[tokio::test]
async fn no_job_reaches_the_servers_own_subjects() {
    let server = Server::start(&[], "");
    stream(&server, stream::Config::default()).await;
    let jobs = Jobs::new().await;
    let forwarder = forwarder(&server, "subject={header.to}");
    for own in ["$JS.API.STREAM.DELETE.JOBS", "_INBOX.a"] {
        let job = jobs.put(jobs.mail().header("to", own)).await;
        let error = forwarder.send(&jobs.client, &job).await.unwrap_err();
        assert_eq!(error, format!("the subject {own:?} is one of the server's own"));
    }
    assert_eq!(messages(&server).await.len(), 0);
}

#[tokio::test]
async fn who_is_not_let_in_or_may_not_publish_is_told_so() {
    let settings = r#"
        authorization { users: [
            { user: all, password: all }
            { user: "a:b", password: "p@ss", permissions: { publish: ["jobs.mine", "$JS.API.>"] } }
        ] }"#;
    let server = Server::start(&[], settings);
    let place = server.place();
    for login in ["", "all:wrong@", "token@"] {
        let forwarder = Forwarder::to(&format!("nats://{login}{place}?subject=jobs.mine")).unwrap();
        let error = forwarder.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.hint().is_some() && !format!("{error:?}").contains("wrong"), "{error:?}");
    }
    let to =
        |subject: &str| Forwarder::to(&format!("nats://a%3ab:p%40ss@{place}?subject={subject}")).unwrap();
    let context = jetstream::new(
        async_nats::ConnectOptions::with_user_and_password("all".into(), "all".into())
            .connect(&place)
            .await
            .unwrap(),
    );
    let config =
        stream::Config { name: "JOBS".into(), subjects: vec!["jobs.>".into()], ..Default::default() };
    context.create_stream(config).await.unwrap();
    let jobs = Jobs::new().await;
    let job = jobs.put(jobs.mail()).await;
    to("jobs.mine").check().await.unwrap();
    to("jobs.mine").send(&jobs.client, &job).await.unwrap();
    let error = to("jobs.others").send(&jobs.client, &job).await.unwrap_err();
    assert!(error.contains("Permissions Violation for Publish"), "{error}");
}

/// A server that came back answers for a while as if it had no streams.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_not_back_yet_costs_no_attempt() {
    let mut server = Server::start(&[], "");
    let context = stream(&server, stream::Config::default()).await;
    let jobs = Jobs::new().await;
    let forwarder = forwarder(&server, "subject=jobs.mail");
    let _work = jobs.forward(&forwarder);
    let before = jobs.put(jobs.mail()).await;
    assert_eq!(jobs.ended(before.id).await.state, State::Done);
    context.delete_stream("JOBS").await.unwrap();
    server.kill();
    server.restart();
    let job = jobs.put(jobs.mail().max_attempts(1)).await;
    let has_met_it = || {
        let trouble = forwarder.counts().trouble;
        trouble.is_some_and(|trouble| trouble.contains("no stream takes the subject jobs.mail yet"))
    };
    let begin = Instant::now();
    while !has_met_it() {
        assert!(begin.elapsed() < END_MAX, "{:?}", forwarder.counts());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stream(&server, stream::Config::default()).await;
    let job = jobs.ended(job.id).await;
    assert_eq!((job.state, job.attempt), (State::Done, 1), "{:?}", job.failures);
}

/// Nothing is lost when the server dies under the jobs, and what went twice is there once.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_no_job_and_has_none_twice() {
    const JOBS: usize = 300;
    let mut server = Server::start(&[], "");
    stream(&server, stream::Config::default()).await;
    let jobs = Jobs::new().await;
    let forwarder = forwarder(&server, "subject=jobs.mail");
    let _work = jobs.forward(&forwarder);
    let mut ids = BTreeSet::new();
    for n in 0..JOBS {
        ids.insert(jobs.put(jobs.mail()).await.id);
        if n % 100 == 50 {
            server.kill();
            server.restart();
        }
    }
    for &id in &ids {
        let job = jobs.ended(id).await;
        assert_eq!((job.state, job.attempt), (State::Done, 1), "{:?}", job.failures);
    }
    let found = messages(&server).await;
    assert_eq!(found.len(), JOBS);
    let store = jobs.client.identity().await.unwrap();
    let there = found.iter().map(|message| message.headers.get("Nats-Msg-Id").unwrap().as_str().to_owned());
    assert_eq!(there.collect::<BTreeSet<_>>(), ids.iter().map(|id| store.message_id(*id)).collect());
}

#[tokio::test]
async fn a_server_that_is_away_is_told_so() {
    let server = Server::start(&[], "");
    let forwarder = forwarder(&server, "subject=jobs.mail");
    server.kill();
    assert_eq!(forwarder.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
}
