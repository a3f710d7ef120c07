//! What becomes of a job by what a receiver answers, and which addresses jobs can make.

use std::collections::BTreeMap;

use super::*;
use crate::testing::job;

#[path = "../../tests/support/stub.rs"]
mod stub;

use stub::{SILENCE, Stub};

/// One that gives up soon.
fn webhook(address: &str, allows_private: bool) -> Result<Webhook> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let webhook = Webhook::new(Address::parse(address)?, None, allows_private)?;
    Ok(Webhook { answer: Duration::from_millis(500), ..webhook })
}

/// What a job meets at a receiver that answers so: one for all jobs, and one of the job's own.
async fn both(answers: &[&str]) -> [std::result::Result<(), Refusal>; 2] {
    let (one, own) = (Stub::start(answers).await, Stub::start(answers).await);
    let fixed = webhook(&format!("http://127.0.0.1:{}/", one.port()), true).unwrap();
    let mut job = job();
    job.headers.insert("url".to_owned(), format!("http://127.0.0.1:{}/", own.port()));
    [fixed.post(&job).await, webhook("webhook:{header.url}", true).unwrap().post(&job).await]
}

fn refused(words: &str) -> std::result::Result<(), Refusal> {
    Err(Refusal::Refused(words.to_owned()))
}

fn away(words: &str) -> std::result::Result<(), Refusal> {
    Err(Refusal::Away(words.to_owned()))
}

#[tokio::test]
async fn a_status_says_what_becomes_of_a_job() {
    for good in ["200 OK", "201 Created\r\n\r\nbody", "204 No Content"] {
        assert_eq!(both(&[good]).await, [Ok(()), Ok(())], "{good}");
    }
    for (answer, words) in [
        ("500 Internal Server Error\r\n\r\nfull\x07 disk\n", "500 Internal Server Error: full  disk"),
        ("400 Bad Request\r\n\r\nno such field", "400 Bad Request: no such field"),
        ("410 Gone", "410 Gone"),
        ("408 Request Timeout", "408 Request Timeout"),
        ("425 Too Early", "425 Too Early"),
        ("307 Temporary Redirect", "307 Temporary Redirect without a place to go to"),
        (
            "302 Found\r\nlocation: http://127.0.0.1:1/new",
            "302 Found: it moved to http://127.0.0.1:1/new: give that address",
        ),
    ] {
        assert_eq!(both(&[answer]).await, [refused(words), refused(words)], "{answer}");
    }
    for (answer, words) in [
        ("502 Bad Gateway", "502 Bad Gateway"),
        ("503 Service Unavailable", "503 Service Unavailable"),
        ("504 Gateway Timeout", "504 Gateway Timeout"),
    ] {
        assert_eq!(both(&[answer]).await, [away(words), refused(words)], "{answer}");
    }
    assert_eq!(both(&[SILENCE]).await, [away("no answer within 500ms"), refused("no answer within 500ms")]);
}

#[tokio::test]
async fn a_receiver_may_ask_for_a_pause() {
    for (answer, after) in [
        ("429 Too Many Requests\r\nretry-after: 120", Some(120)),
        ("429 Too Many Requests\r\nretry-after: 0", Some(1)),
        ("429 Too Many Requests\r\nretry-after: 99999999", Some(24 * 60 * 60)),
        ("429 Too Many Requests\r\nretry-after: Sun, 06 Nov 1994 08:49:37 GMT", Some(1)),
        ("429 Too Many Requests\r\nretry-after: soon", None),
        ("429 Too Many Requests", None),
        ("503 Service Unavailable\r\nretry-after: 7", Some(7)),
    ] {
        for (said, fixed) in both(&[answer]).await.into_iter().zip([true, false]) {
            let Err(Refusal::Busy { after: found, all, error }) = said else { panic!("{answer}: {said:?}") };
            assert_eq!((found, all), (after.map(Duration::from_secs), fixed), "{answer}");
            assert!(answer.starts_with(&error), "{error}");
        }
    }
    let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
    assert_eq!(pause("Sun, 06 Nov 1994 08:51:37 GMT", now), Some(Duration::from_mins(2)));
}

#[tokio::test]
async fn nobody_at_the_address_is_away_for_one_host_and_a_refusal_for_a_job_of_its_own() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let address = format!("http://127.0.0.1:{port}/?key=secret");
    let mut job = job();
    job.headers.insert("url".to_owned(), address.clone());
    let Err(Refusal::Away(fixed)) = webhook(&address, true).unwrap().post(&job).await else { panic!() };
    let Err(Refusal::Refused(own)) = webhook("webhook:{header.url}", true).unwrap().post(&job).await else {
        panic!()
    };
    for words in [fixed, own] {
        assert!(words.contains("refused") && !words.contains("secret"), "{words}");
    }
}

#[tokio::test]
async fn redirects_that_keep_the_request_are_followed_three_times() {
    let again = "307 Temporary Redirect\r\nlocation: /again";
    assert_eq!(
        both(&[again, "308 Permanent Redirect\r\nlocation: /b", again, "200 OK"]).await,
        [Ok(()), Ok(())]
    );
    assert_eq!(both(&[again]).await, [refused("more than 3 redirects"), refused("more than 3 redirects")]);
}

#[tokio::test]
async fn a_redirect_is_judged_like_an_address() {
    for to in ["http://user@127.0.0.1/", "gopher://127.0.0.1/", "file:///etc/passwd"] {
        let answer = format!("307 Temporary Redirect\r\nlocation: {to}");
        for said in both(&[&answer]).await {
            let Err(Refusal::Refused(words)) = said else { panic!("{to}: {said:?}") };
            assert!(words.starts_with("it was redirected: "), "{words}");
        }
    }
    // The guard is closed only behind the first step: the receiver itself has to be on this machine.
    let stub = Stub::start(&["307 Temporary Redirect\r\nlocation: http://127.0.0.1:9/"]).await;
    let mut webhook = webhook(&format!("http://127.0.0.1:{}/", stub.port()), true).unwrap();
    webhook.guard = Guard::new(false);
    let Err(Refusal::Never(words)) = webhook.post(&job()).await else { panic!() };
    assert_eq!(words, "it is not https; private addresses are not allowed here");
    assert!(stub.requests().is_empty());
}

#[tokio::test]
async fn a_name_in_a_private_network_is_refused_when_it_is_connected_to() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut webhook = webhook("https://hooks.example/", false).unwrap();
    webhook.guard = Guard::asking(false, |_| Box::pin(async { Ok(vec![[10, 0, 0, 1].into()]) }));
    webhook.client = client(&webhook.guard, false).unwrap();
    let words = "hooks.example is in a private network; private addresses are not allowed here";
    assert_eq!(webhook.post(&job()).await, refused(words));
    let error = webhook.look().await.unwrap_err();
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Invalid, true));
}

#[tokio::test]
async fn an_address_that_is_private_by_itself_is_never_tried() {
    for private in
        ["https://127.0.0.1/", "https://localhost/x", "https://[::1]/{kind}", "http://example.com/"]
    {
        let error = webhook(private, false).err().unwrap();
        assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Invalid, true), "{private}");
        let mut job = job();
        job.headers.insert("url".to_owned(), private.to_owned());
        let said = webhook("webhook:{header.url}", false).unwrap().post(&job).await;
        assert!(matches!(said, Err(Refusal::Never(_))), "{private}: {said:?}");
    }
    let mut job = job();
    for odd in
        ["unix:/run/docker.sock", "gopher://example.com/", "https://user@example.com/", "no address", ""]
    {
        job.headers.insert("url".to_owned(), odd.to_owned());
        let said = webhook("webhook:{header.url}", true).unwrap().post(&job).await;
        assert!(matches!(said, Err(Refusal::Never(_))), "{odd}: {said:?}");
    }
}

#[test]
fn values_of_a_job_never_change_the_shape_of_an_address() {
    let address = Address::parse("https://example.com/v1/{header.a}/end?kind={kind}&a={header.a}").unwrap();
    let fill = |value: &str| {
        let mut job = job();
        job.headers = BTreeMap::from([("a".to_owned(), value.to_owned())]);
        address.fill(&job)
    };
    for (value, encoded) in [
        ("plain-1_2.3~", "plain-1_2.3~"),
        ("a/b", "a%2Fb"),
        ("a?b=c&d#e", "a%3Fb%3Dc%26d%23e"),
        ("@evil.com", "%40evil.com"),
        ("\\evil.com", "%5Cevil.com"),
        ("..%2f..", "..%252f.."),
        ("a b\r\nc", "a%20b%0D%0Ac"),
        ("ä", "%C3%A4"),
    ] {
        let url = fill(value).unwrap();
        let expected = format!("https://example.com/v1/{encoded}/end?kind=email.send&a={encoded}");
        assert_eq!(url.as_str(), expected);
        assert_eq!(url.query_pairs().count(), 2);
    }
    for value in [".", "..", ""] {
        assert!(fill(value).is_err(), "{value:?}");
    }
}

#[test]
fn what_is_no_address_of_a_webhook_is_refused() {
    for bad in [
        "https://{header.host}/",
        "https://example.com:{header.port}/",
        "https://exa mple.com/",
        "https://example.com\\@evil.com/",
        "https://example.com/#here",
        "https://example.com/a/../b",
        "https://example.com/%2e%2e/b",
        "https:example.com",
        "https:///",
        "webhook:https://example.com/",
        "webhook:",
    ] {
        let error = Address::parse(bad).unwrap_err();
        assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Invalid, true), "{bad}");
    }
    let shown = |text: &str| Address::parse(text).unwrap().shown();
    assert_eq!(shown("https://example.com/a/{kind}?key=secret"), "https://example.com/…");
    assert_eq!(shown("https://example.com"), "https://example.com");
}

#[test]
fn a_header_that_http_does_not_take_is_told() {
    let webhook = webhook("https://example.com/", false).unwrap();
    for (name, value) in [("bad name", "x"), ("line", "a\r\nb: c"), ("null", "\0")] {
        let mut job = job();
        job.headers.insert(name.to_owned(), value.to_owned());
        let words = webhook.headers(&job, UNIX_EPOCH).unwrap_err();
        assert!(
            words.starts_with("HTTP takes no such ") || words.starts_with("HTTP does not take its "),
            "{words}"
        );
    }
}
