//! What becomes of a job by the receiver's answer, and which addresses jobs can form.

use std::collections::BTreeMap;

use super::*;
use crate::{testing::job, tls::Tls};

#[path = "../../tests/support/stub.rs"]
mod stub;

use stub::{SILENCE, Stub};

/// Makes a webhook with short timeouts.
fn webhook(address: &str, allows_private: bool) -> Result<Webhook> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let setup = Setup { allows_private, ..Setup::default() };
    let webhook = Webhook::new(Address::parse(address)?, setup, &Tls::default())?;
    Ok(Webhook { answer: Duration::from_millis(500), ..webhook })
}

/// Returns the results of a job at a receiver with these answers: with one address for all jobs, and with the job's
/// own.
async fn both(answers: &[&str]) -> [std::result::Result<(), Refusal>; 2] {
    let (one, own) = (Stub::start(answers).await, Stub::start(answers).await);
    let fixed = webhook(&format!("http://127.0.0.1:{}/", one.port()), true).unwrap();
    let mut job = job();
    job.headers.insert("url".to_owned(), format!("http://127.0.0.1:{}/", own.port()));
    [fixed.post(&job, "id").await, webhook("webhook:{header.url}", true).unwrap().post(&job, "id").await]
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
    assert_eq!(both(&["410 Gone"]).await, [(); 2].map(|()| Err(Refusal::Never("410 Gone".to_owned()))));
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
        ("429 Too Many Requests\r\nretry-after: 99999999", Some(10 * 60)),
        ("429 Too Many Requests\r\nretry-after: Sun, 06 Nov 1994 08:49:37 GMT", Some(1)),
        ("429 Too Many Requests\r\nretry-after: 10000000000000000000000", Some(10 * 60)),
        ("429 Too Many Requests\r\nretry-after: Fri, 31 Dec 9999 23:59:59 GMT", Some(10 * 60)),
        ("429 Too Many Requests\r\nretry-after: -7", None),
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
    for date in [
        "Sun, 06 Nov 1994 08:51:37 GMT",
        "Sunday, 06-Nov-94 08:51:37 GMT",
        "Sun Nov  6 08:51:37 1994",
        "Sun, 6 Nov 1994 08:51:37 +0000",
    ] {
        assert_eq!(pause(date, now), Some(Duration::from_mins(2)), "{date}");
    }
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
    let Err(Refusal::Away(fixed)) = webhook(&address, true).unwrap().post(&job, "id").await else { panic!() };
    let Err(Refusal::Refused(own)) = webhook("webhook:{header.url}", true).unwrap().post(&job, "id").await
    else {
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
    // The guard applies only after the first step, because the receiver itself is on this machine.
    let stub = Stub::start(&["307 Temporary Redirect\r\nlocation: http://127.0.0.1:9/"]).await;
    let mut webhook = webhook(&format!("http://127.0.0.1:{}/", stub.port()), true).unwrap();
    webhook.guard = Guard::new(false);
    let Err(Refusal::Never(words)) = webhook.post(&job(), "id").await else { panic!() };
    assert_eq!(words, "it is not https; private addresses are not allowed here");
    assert!(stub.requests().is_empty());
}

#[tokio::test]
async fn a_name_in_a_private_network_is_refused_when_it_is_connected_to() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut webhook = webhook("https://hooks.example/", false).unwrap();
    webhook.guard = Guard::asking(false, |_| Box::pin(async { Ok(vec![[10, 0, 0, 1].into()]) }));
    webhook.client = client(&webhook.guard, false, true, &Tls::default()).unwrap();
    let words = "hooks.example is in a private network; private addresses are not allowed here";
    assert_eq!(webhook.post(&job(), "id").await, refused(words));
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
        let said = webhook("webhook:{header.url}", false).unwrap().post(&job, "id").await;
        assert!(matches!(said, Err(Refusal::Never(_))), "{private}: {said:?}");
    }
    let mut job = job();
    for odd in
        ["unix:/run/docker.sock", "gopher://example.com/", "https://user@example.com/", "no address", ""]
    {
        job.headers.insert("url".to_owned(), odd.to_owned());
        let said = webhook("webhook:{header.url}", true).unwrap().post(&job, "id").await;
        assert!(matches!(said, Err(Refusal::Never(_))), "{odd}: {said:?}");
    }
}

/// If this process has no descriptors left, no job and no receiver is at fault.
#[tokio::test]
async fn a_process_without_descriptors_blames_no_job() {
    let mut webhook = webhook("webhook:{header.url}", false).unwrap();
    webhook.guard =
        Guard::asking(false, |_| Box::pin(async { Err(io::Error::from_raw_os_error(NO_DESCRIPTORS[0])) }));
    webhook.client = client(&webhook.guard, false, false, &Tls::default()).unwrap();
    let mut job = job();
    job.headers.insert("url".to_owned(), "https://hooks.example/".to_owned());
    let said = webhook.post(&job, "id").await;
    assert!(matches!(said, Err(Refusal::Ours(_))), "{said:?}");
}

#[test]
fn one_secret_for_many_receivers_is_refused() {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let new = |address: &str, place: Place| {
        let setup = Setup { secrets: Some(place), ..Setup::default() };
        Webhook::new(Address::parse(address).unwrap(), setup, &Tls::default()).map(|_| ())
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let own = "webhook:{header.url}";
    for place in
        [Place::Text(secret.to_owned()), Place::File("/nowhere".to_owned()), Place::Env("HOOK".to_owned())]
    {
        let error = new(own, place).unwrap_err();
        assert_eq!(error.to_string(), "one secret for all receivers lets each of them sign for the others");
    }
    assert!(new(own, Place::File("/run/{header.endpoint}".to_owned())).is_ok());
    assert!(new(own, Place::Env("HOOK_{header.endpoint}".to_owned())).is_ok());
    assert!(new("https://example.com/", Place::Text(format!("{secret}\n{secret}\n"))).is_ok());
    for bad in [String::new(), format!("{secret} {secret} {secret}"), "secret".to_owned()] {
        assert_eq!(new("https://example.com/", Place::Text(bad)).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let missing = new("https://example.com/", Place::File("/nowhere/at/all".to_owned())).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/at/all"), "{missing}");
}

#[tokio::test]
async fn each_receiver_has_its_own_secret_and_two_while_one_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let (first, second) =
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX");
    file("acme", first);
    let name = format!("{}/{{header.endpoint}}", folder.path().display());
    let setup = Setup { secrets: Some(Place::File(name)), ..Setup::default() };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let webhook =
        Webhook::new(Address::parse("webhook:{header.url}").unwrap(), setup, &Tls::default()).unwrap();
    let mut job = job();
    job.headers.insert("endpoint".to_owned(), "acme".to_owned());
    let one = webhook.secrets.sign(&job, "id", 1).await.unwrap().unwrap();
    file("acme", &format!("{second}\n{first}\n"));
    let two = webhook.secrets.sign(&job, "id", 1).await.unwrap().unwrap();
    assert!(one.starts_with("v1,") && two.ends_with(&format!(" {one}")), "{one} and {two}");
    job.headers.insert("endpoint".to_owned(), "other".to_owned());
    let missing = webhook.secrets.sign(&job, "id", 1).await;
    assert!(matches!(&missing, Err(Refusal::Refused(_))), "it may be made: {missing:?}");
    for odd in ["", "..", "../acme", "a/b", ".hidden", "a\0b"] {
        job.headers.insert("endpoint".to_owned(), odd.to_owned());
        let said = webhook.secrets.sign(&job, "id", 1).await;
        assert!(matches!(&said, Err(Refusal::Never(_))), "{odd:?}: {said:?}");
    }
}

#[tokio::test]
async fn what_is_signed_is_redirected_nowhere() {
    let to = Stub::start(&["200 OK"]).await;
    let redirect = format!("307 Temporary Redirect\r\nlocation: http://127.0.0.1:{}/x?key=secret", to.port());
    let stub = Stub::start(&[&redirect]).await;
    let address = || Address::parse(&format!("http://127.0.0.1:{}/", stub.port())).unwrap();
    let signed = Setup {
        secrets: Some(Place::Text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned())),
        allows_private: true,
        ..Setup::default()
    };
    let headers = vec![("Authorization".to_owned(), "Bearer token".to_owned())];
    let with_header = Setup { headers, allows_private: true, ..Setup::default() };
    for setup in [signed, with_header] {
        let Err(Refusal::Refused(words)) =
            Webhook::new(address(), setup, &Tls::default()).unwrap().post(&job(), "id").await
        else {
            panic!("it is a failure")
        };
        assert!(words.starts_with("307 Temporary Redirect to http://127.0.0.1:"), "{words}");
        assert!(!words.contains("secret"), "{words}");
    }
    assert!(to.requests().is_empty());
    assert_eq!(stub.requests()[1].header("authorization"), Some("Bearer token"));
}

#[test]
fn headers_of_the_configuration_are_no_ones_else() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let new = |address: &str, name: &str| {
        let headers = vec![(name.to_owned(), "x".to_owned())];
        Webhook::new(Address::parse(address).unwrap(), Setup { headers, ..Setup::default() }, &Tls::default())
            .map(|_| ())
    };
    assert!(new("https://example.com/", "X-Env").is_ok() && new("webhook:{header.url}", "X-Env").is_ok());
    for odd in ["webhook-id", "Punctual-Kind", "Content-Type", "host", "a b", ""] {
        assert_eq!(new("https://example.com/", odd).unwrap_err().kind(), ErrorKind::Invalid, "{odd}");
    }
    assert_eq!(new("webhook:{header.url}", "Authorization").unwrap_err().kind(), ErrorKind::Invalid);
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
        let words = webhook.headers(&job, "id", UNIX_EPOCH).unwrap_err();
        assert!(
            words.starts_with("HTTP takes no such ") || words.starts_with("HTTP does not take its "),
            "{words}"
        );
    }
}
