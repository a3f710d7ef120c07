//! Jobs that are handed over to webhooks, to a server of the tests' own.

#![cfg(feature = "webhook")]
#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

#[path = "support/stub.rs"]
mod stub;
#[path = "support/work.rs"]
mod work;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit as _, Mac as _};
use punctual::{ErrorKind, JobId, JobRecord, State};
use punctual_forward::{Forwarder, Target};
use sha2::Sha256;
use stub::{Request, Stub};
use work::{Jobs, last_error};

/// A key of 32 bytes.
const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// How long a request is waited for.
const PATIENCE: Duration = Duration::from_mins(1);

fn forwarder(stub: &Stub, path: &str) -> Forwarder {
    let target = Target::parse(&format!("http://127.0.0.1:{}{path}", stub.port())).unwrap();
    target.signed_with(SECRET).allow_private().forwarder().unwrap()
}

#[tokio::test]
async fn a_job_is_done_when_a_receiver_took_it_with_all_that_goes_out() {
    let stub = Stub::start(&["202 Accepted"]).await;
    let forwarder = forwarder(&stub, "/hooks/{header.tenant}?kind={kind}");
    forwarder.check().await.unwrap();
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail().header("tenant", "a/b").header("webhook-id", "forged")).await;
    assert_eq!(jobs.ended(job.id).await.state, State::Done);

    let id = jobs.outside(job.id).await;
    let requests = stub.requests();
    let lines: Vec<_> = requests.iter().map(|request| request.line.as_str()).collect();
    assert_eq!(lines, ["POST /hooks/a%2Fb?kind=email.send HTTP/1.1"]);
    for request in &requests {
        let header = |name| request.header(name).unwrap_or_else(|| panic!("no {name} in {request:?}"));
        assert_eq!(request.body, job.payload.bytes);
        assert_eq!(header("content-type"), "application/json");
        assert_eq!(header("webhook-id"), id);
        assert_eq!(header("punctual-kind"), "email.send");
        assert_eq!(header("punctual-queue"), "mail");
        assert_eq!(header("punctual-attempt"), "1");
        assert_eq!(header("punctual-run-at-ms"), job.run_at.as_ms().to_string());
        assert_eq!(header("punctual-header-tenant"), "a/b");
        assert_eq!(header("punctual-header-webhook-id"), "forged");
        assert!(header("user-agent").starts_with("punctual/"));

        let at = header("webhook-timestamp");
        let sent = UNIX_EPOCH + Duration::from_secs(at.parse().unwrap());
        assert!(SystemTime::now().duration_since(sent).unwrap() < Duration::from_mins(1));
        let mut expected = Hmac::<Sha256>::new_from_slice(&(0..32).collect::<Vec<u8>>()).unwrap();
        expected.update(&[id.as_bytes(), b".", at.as_bytes(), b".", &request.body].concat());
        let expected = BASE64.encode(expected.finalize().into_bytes());
        assert_eq!(header("webhook-signature"), format!("v1,{expected}"));
    }
}

/// A receiver that remembers ids must not take the job of one store for that of another.
#[tokio::test]
async fn jobs_of_the_same_id_in_two_stores_have_different_ids_at_the_receiver() {
    let stub = Stub::start(&["200 OK"]).await;
    let forwarder = forwarder(&stub, "/");
    let (staging, production) = (Jobs::new().await, Jobs::new().await);
    let _work = [staging.forward(&forwarder), production.forward(&forwarder)];
    let mut ids = Vec::new();
    for jobs in [&staging, &production] {
        let job = jobs.put(jobs.mail().idempotency_key("order-7")).await;
        assert_eq!(jobs.ended(job.id).await.state, State::Done);
        ids.push(job.id);
    }
    assert_eq!(ids[0], ids[1], "the key leads to one id");
    let requests = stub.requests();
    let sent: Vec<_> = requests.iter().map(|request| request.header("webhook-id").unwrap()).collect();
    assert_eq!(sent.len(), 2);
    assert_ne!(sent[0], sent[1]);
}

#[tokio::test]
async fn a_job_that_is_refused_comes_back_and_ends_dead_in_the_receivers_words() {
    let stub = Stub::start(&["500 Internal Server Error\r\n\r\nno such list"]).await;
    let forwarder = forwarder(&stub, "/");
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail().max_attempts(3)).await;
    let job = jobs.ended(job.id).await;
    assert_eq!((job.state, job.attempt), (State::Dead, 3));
    assert_eq!(last_error(&job), "500 Internal Server Error: no such list");
    let attempts =
        stub.requests().into_iter().map(|request| request.header("punctual-attempt").unwrap().to_owned());
    assert_eq!(attempts.collect::<Vec<_>>(), ["1", "2", "3"]);
    let counts = forwarder.counts();
    assert_eq!((counts.forwarded, counts.refused), (0, 3));
    assert_eq!(counts.trouble.as_deref(), Some("500 Internal Server Error: no such list"));
}

#[tokio::test]
async fn a_receiver_that_is_away_is_waited_for_and_costs_no_attempt() {
    let stub = Stub::start(&["503 Service Unavailable", "502 Bad Gateway", "200 OK"]).await;
    let forwarder = forwarder(&stub, "/");
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail()).await;
    let job = jobs.ended(job.id).await;
    assert_eq!((job.state, job.attempt), (State::Done, 1));
    assert_eq!(forwarder.counts().again, 2);
}

/// What there was so far by whether it was asked for the first job; the last is what is asked now.
fn of_the_first(requests: &[Request]) -> Vec<bool> {
    let job = |request: &Request| request.header("webhook-id").unwrap().to_owned();
    requests.iter().map(|request| job(request) == job(&requests[0])).collect()
}

async fn until_asked(stub: &Stub) {
    let begin = Instant::now();
    while stub.requests().is_empty() {
        assert!(begin.elapsed() < PATIENCE, "nobody asked");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// One that goes through at its beginning doesn't make an outage a job's own fault.
#[tokio::test]
async fn an_outage_costs_no_attempt_however_many_tries_it_lasts() {
    let stub = Stub::answering(|requests| {
        let asked = of_the_first(requests);
        let since = asked.iter().rev().take_while(|&&is_first| is_first).count();
        let is_away = asked.len() == since || (1..=6).contains(&since);
        if is_away { "503 Service Unavailable" } else { "200 OK" }.to_owned()
    })
    .await;
    let forwarder = forwarder(&stub, "/");
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail()).await;
    until_asked(&stub).await;
    jobs.put(jobs.mail()).await;
    let job = jobs.ended(job.id).await;
    assert_eq!((job.state, job.attempt), (State::Done, 1), "{job:?}");
}

#[tokio::test]
async fn a_job_that_others_overtake_at_each_try_is_taken_for_refused() {
    let stub = Stub::answering(|requests| {
        let is_first = *of_the_first(requests).last().unwrap();
        if is_first { "503 Service Unavailable" } else { "200 OK" }.to_owned()
    })
    .await;
    let forwarder = forwarder(&stub, "/");
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail().max_attempts(1)).await;
    until_asked(&stub).await;
    let job = ended_among_others(&jobs, job.id).await;
    assert_eq!((job.state, last_error(&job)), (State::Dead, "503 Service Unavailable"), "{job:?}");
}

/// Who is asked to wait is not overtaken: it is no sign that the other side can't stand the job.
#[tokio::test]
async fn pauses_that_a_receiver_asked_for_are_no_tries_that_others_overtook() {
    let stub = Stub::answering(|requests| {
        let asked = of_the_first(requests);
        let answer = match asked.iter().filter(|&&is_first| is_first).count() {
            _ if !asked[asked.len() - 1] => "200 OK",
            1..=5 => "429 Too Many Requests\r\nretry-after: 1",
            6 => "503 Service Unavailable",
            _ => "200 OK",
        };
        answer.to_owned()
    })
    .await;
    let forwarder = forwarder(&stub, "/");
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail()).await;
    until_asked(&stub).await;
    let job = ended_among_others(&jobs, job.id).await;
    assert_eq!((job.state, job.attempt), (State::Done, 1), "{job:?}");
}

/// The job when it ended, while others came all the time.
async fn ended_among_others(jobs: &Jobs, id: JobId) -> JobRecord {
    let others = async {
        loop {
            jobs.put(jobs.mail()).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        job = jobs.ended(id) => job,
        () = others => unreachable!("it never ends"),
    }
}

#[tokio::test]
async fn a_receiver_that_asks_for_a_short_pause_gets_it_and_costs_no_attempt() {
    let stub = Stub::start(&["429 Too Many Requests\r\nretry-after: 1", "200 OK"]).await;
    let jobs = Jobs::new().await;
    let forwarder = forwarder(&stub, "/");
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail()).await;
    let job = jobs.ended(job.id).await;
    assert_eq!((job.state, job.attempt, job.snoozes), (State::Done, 1, 0));
    let waited_ms = job.finished_at.unwrap().as_ms() - job.created_at.as_ms();
    assert!(1_000 <= waited_ms, "{waited_ms}");
}

#[tokio::test]
async fn a_pause_that_is_too_long_to_be_waited_for_in_place_closes_the_queue() {
    let stub = Stub::start(&["429 Too Many Requests\r\nretry-after: 1", "200 OK"]).await;
    let jobs = Jobs::new().await;
    let forwarder = forwarder(&stub, "/");
    let _work = jobs.forward(&forwarder);
    let job = jobs.put(jobs.mail().timeout(Duration::from_secs(1))).await;
    let job = jobs.ended(job.id).await;
    assert_eq!((job.state, job.attempt), (State::Done, 2));
    let waited_ms = job.finished_at.unwrap().as_ms() - job.failures[0].ended_ms;
    assert!(1_000 <= waited_ms, "{waited_ms}");
}

#[tokio::test]
async fn a_private_address_is_refused_unless_it_is_allowed() {
    let stub = Stub::start(&["200 OK"]).await;
    let address = format!("http://127.0.0.1:{}/", stub.port());
    let error = Forwarder::to(&address).unwrap_err();
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Invalid, true));
    let jobs = Jobs::new().await;
    let _work = jobs.forward(&Forwarder::to("webhook:{header.url}").unwrap());
    let job = jobs.put(jobs.mail().header("url", format!("https://127.0.0.1:{}/", stub.port()))).await;
    let job = jobs.ended(job.id).await;
    assert_eq!((job.state, job.attempt), (State::Dead, 1));
    assert_eq!(last_error(&job), "127.0.0.1 is in a private network; private addresses are not allowed here");
    assert!(stub.requests().is_empty());
}
