//! Jobs that are handed over to a stream of Redis, on a real server.

#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

#[path = "../../punctual/tests/support/redis.rs"]
mod redis;
#[path = "support/work.rs"]
mod work;

use punctual::{ErrorKind, State};
use punctual_forward::Forwarder;
use redis::Server;
use work::{Jobs, last_error};

fn forwarder(server: &Server, options: &str) -> Forwarder {
    Forwarder::to(&format!("redis+unix://{}?{options}", server.socket().display())).unwrap()
}

#[tokio::test]
async fn a_job_is_done_when_the_stream_has_it_with_all_that_goes_out() {
    let server = Server::start(&[]);
    let forwarder = forwarder(&server, "stream=jobs:{header.tenant}");
    forwarder.check().await.unwrap();
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail().header("tenant", "acme")).await;
    assert_eq!(jobs.ended(job.id).await.state, State::Done);
    let entries = server.say(&["XRANGE", "jobs:acme", "-", "+"]);
    let fields: Vec<_> = entries.lines().skip(1).collect();
    let (id, run_at) = (jobs.outside(job.id).await, job.run_at.as_ms().to_string());
    #[rustfmt::skip]
    let expected = [
        "id", &id, "kind", "email.send", "queue", "mail", "attempt", "1", "run-at-ms", &run_at,
        "content-type", "application/json", "payload", r#"{"to":"ana@example.com"}"#, "header.tenant", "acme",
    ];
    assert_eq!(fields, expected);
}

#[tokio::test]
async fn a_stream_keeps_about_as_many_entries_as_is_said() {
    let server = Server::start(&["--stream-node-max-entries", "10"]);
    let forwarder = forwarder(&server, "stream=jobs&maxlen=10&db=3");
    let jobs = Jobs::new().await;
    let job = jobs.put(jobs.mail()).await;
    for _ in 0..50 {
        forwarder.send(&jobs.client, &job).await.unwrap();
    }
    let kept: u32 = server.say(&["-n", "3", "XLEN", "jobs"]).parse().unwrap();
    assert!((10..=20).contains(&kept), "{kept}");
}

#[tokio::test]
async fn what_the_server_does_not_take_ends_dead_in_its_words() {
    let server = Server::start(&[]);
    server.say(&["SET", "taken", "1"]);
    let to_text = forwarder(&server, "stream=taken");
    let error = to_text.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string(), "\"taken\" is there already, and is a string, not a stream");
    let jobs = Jobs::new().await;
    let job = {
        let _work = jobs.forward(&to_text);
        let job = jobs.put(jobs.mail().max_attempts(2)).await;
        jobs.ended(job.id).await
    };
    assert_eq!((job.state, job.attempt), (State::Dead, 2));
    assert!(last_error(&job).starts_with("WRONGTYPE "), "{:?}", job.failures);

    server.say(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = forwarder(&server, "stream=jobs").send(&jobs.client, &job).await.unwrap_err();
    assert!(error.starts_with("OOM "), "{error}");
}

#[tokio::test]
async fn who_is_not_let_in_is_told_so_without_the_password() {
    let server = Server::start(&["--requirepass", "right"]);
    for login in ["", "&pass=wrong-secret", "&user=nobody&pass=wrong-secret"] {
        let forwarder = forwarder(&server, &format!("stream=jobs{login}"));
        assert!(!forwarder.shown().contains("secret"));
        let error = forwarder.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.hint().is_some() && !format!("{error:?}").contains("secret"), "{error:?}");
    }
    forwarder(&server, "stream=jobs&pass=right").check().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_waited_for_and_costs_no_attempt() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let forwarder = forwarder(&server, "stream=jobs");
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let mut ids = Vec::new();
    for n in 0..100 {
        ids.push(jobs.put(jobs.mail()).await.id);
        if n == 50 {
            server.kill();
            assert_eq!(forwarder.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
            server.restart();
        }
    }
    for &id in &ids {
        let job = jobs.ended(id).await;
        assert_eq!((job.state, job.attempt), (State::Done, 1), "{:?}", job.failures);
    }
    let entries = server.say(&["XRANGE", "jobs", "-", "+"]);
    // At least once each.
    assert!(ids.iter().all(|id| entries.contains(&id.to_string())));
}
