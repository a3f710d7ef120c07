//! Who is let in, by signatures.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request};
use futures_util::{FutureExt as _, StreamExt as _, poll};
use punctual::{
    CancellationToken, Client,
    testing::{Fault, FaultyStore},
};
use punctual_server::{
    Server,
    token::{self, NewToken, Role},
};
use serde_json::json;

use tokio::time::timeout;

use crate::site::{Key, Site, date, key, send, url};

#[tokio::test]
async fn a_signed_request_is_answered_and_one_that_was_changed_is_not() {
    let site = Site::new().await;
    let draft = site.draft("ListQueues", &json!({})).await;
    let answer = send(&site.router, draft.request(&site.admin)).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, "{}"));
    assert_eq!(answer.content_type, "application/x-amz-json-1.0");
    assert_eq!(answer.request_id.unwrap().len(), 36);
    for (part, value) in
        [("x-amz-target", "AmazonSQS.ListQueues "), ("host", "other.example"), ("content-type", "text/plain")]
    {
        let mut request = draft.request(&site.admin);
        request.headers_mut().insert(part, value.parse().unwrap());
        let answer = send(&site.router, request).await;
        // Spaces around a value are not signed.
        let expected = if part == "x-amz-target" { "InvalidAction" } else { "SignatureDoesNotMatch" };
        assert_eq!(answer.code(), expected, "{part}");
    }
    let (parts, _) = draft.request(&site.admin).into_parts();
    let answer = send(&site.router, Request::from_parts(parts, Body::from("{ }"))).await;
    assert_eq!((answer.status, answer.code().as_str()), (403, "SignatureDoesNotMatch"));
}

#[tokio::test]
async fn each_fault_of_a_signature_has_its_code() {
    let site = Site::new().await;
    let draft = site.draft("ListQueues", &json!({})).await;
    let code = async |key: &Key| {
        let answer = send(&site.router, draft.request(key)).await;
        (answer.status, answer.code())
    };
    let wrong = Key { secret: "x".to_owned(), ..site.admin.clone() };
    assert_eq!(code(&wrong).await, (403, "SignatureDoesNotMatch".to_owned()));
    for id in ["00c0ffee", "AKIDEXAMPLE", "", "token", &site.admin.id.to_uppercase()] {
        let unknown = Key { id: id.to_owned(), ..site.admin.clone() };
        // An id of digits alone is the same in both cases.
        if id != site.admin.id {
            assert_eq!(code(&unknown).await, (403, "InvalidClientTokenId".to_owned()), "{id}");
        }
    }
    for missing in ["host", "x-amz-date", "x-amz-target"] {
        let mut draft = draft.clone();
        draft.signed.retain(|name| *name != missing);
        let answer = send(&site.router, draft.request(&site.admin)).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "IncompleteSignature"), "{missing}");
    }
    let mut request = draft.request(&site.admin);
    request.headers_mut().remove("authorization");
    let answer = send(&site.router, request).await;
    assert_eq!((answer.status, answer.code().as_str()), (403, "MissingAuthenticationToken"));
}

#[tokio::test]
async fn a_signature_is_valid_for_15_minutes_and_can_be_repeated_meanwhile() {
    let site = Site::new().await;
    let now = site.client().store().now().await.unwrap().as_ms() / 1_000 * 1_000;
    for (offset, is_right) in [(-899, true), (899, true), (-902, false), (902, false)] {
        let mut draft = site.draft("ListQueues", &json!({})).await;
        draft.date = date(now.saturating_add_signed(offset * 1_000));
        let answer = send(&site.router, draft.request(&site.admin)).await;
        if is_right {
            answer.ok();
        } else {
            assert_eq!((answer.status, answer.code().as_str()), (400, "RequestExpired"), "{offset}");
        }
    }
    let draft = site.draft("CreateQueue", &json!({"QueueName": "q"})).await;
    for _ in 0..2 {
        send(&site.router, draft.request(&site.admin)).await.ok();
    }
    site.t.advance(Duration::from_mins(16));
    // What is known of the key is of the time before.
    let answer = send(&site.other(), draft.request(&site.admin)).await;
    assert_eq!(answer.code(), "RequestExpired");
}

/// Ten wrong tokens close the door for bearer tokens of an address. Behind one address there can be many clients.
#[tokio::test]
async fn wrong_signatures_of_others_lock_nobody_out() {
    let site = Site::new().await;
    for n in 0..30 {
        let draft = site.draft("ListQueues", &json!({})).await;
        let wrong = Key { secret: format!("x{n}"), ..site.admin.clone() };
        assert_eq!(send(&site.router, draft.request(&wrong)).await.code(), "SignatureDoesNotMatch");
        let unknown = Key { id: format!("{n:08}"), ..wrong };
        assert_eq!(send(&site.router, draft.request(&unknown)).await.code(), "InvalidClientTokenId");
    }
    site.ask("ListQueues", json!({})).await.ok();
    // Nor a key that the server has not seen before.
    let new = site.key(Role::Read, None).await;
    site.ask_as(&new, "ListQueues", json!({})).await.ok();
}

#[tokio::test]
async fn a_token_signs_only_if_it_was_made_for_it_and_until_it_ends() {
    let site = Site::new().await;
    let made = token::make(site.client(), &NewToken::new("bo", Role::Admin), token::random().unwrap())
        .await
        .unwrap();
    let plain = Key { id: made.token.id.clone(), secret: made.secret.access_key() };
    assert_eq!(site.ask_as(&plain, "ListQueues", json!({})).await.code(), "InvalidClientTokenId");
    let text = Key { id: site.admin.id.clone(), secret: made.secret.expose().to_owned() };
    assert_eq!(site.ask_as(&text, "ListQueues", json!({})).await.code(), "SignatureDoesNotMatch");
    let soon = NewToken { expires_in: Some(Duration::from_mins(1)), ..NewToken::new("cy", Role::Read) };
    let soon = key(site.client(), soon).await;
    site.ask_as(&soon, "ListQueues", json!({})).await.ok();
    site.t.advance(Duration::from_mins(1));
    let draft = site.draft("ListQueues", &json!({})).await;
    let answer = send(&site.other(), draft.request(&soon)).await;
    assert_eq!(answer.code(), "InvalidClientTokenId");
    assert!(answer.text.contains("expired"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_key_is_refused_within_a_second() {
    let site = Site::new().await;
    let key = site.key(Role::Read, None).await;
    site.ask_as(&key, "ListQueues", json!({})).await.ok();
    assert!(token::revoke(site.client(), &key.id).await.unwrap());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(site.ask_as(&key, "ListQueues", json!({})).await.code(), "InvalidClientTokenId");
}

#[tokio::test]
async fn without_tokens_programs_on_the_machine_need_no_valid_signature() {
    let client = Client::connect("memory:").await.unwrap();
    let router = Server::new(&client).sqs().router(&CancellationToken::new());
    let site = Site::new().await;
    let any = Key { id: "test".to_owned(), secret: "test".to_owned() };
    for (peer, host, status) in [
        ("127.0.0.1:50000", "localhost:7890", 200),
        ("192.0.2.1:50000", "localhost:7890", 403),
        // A page of another site that reaches the server by a name of its own.
        ("127.0.0.1:50000", "evil.example", 403),
    ] {
        let mut draft = site.draft("ListQueues", &json!({})).await;
        draft.peer = peer;
        let mut request = draft.request(&any);
        request.headers_mut().insert("host", host.parse().unwrap());
        assert_eq!(send(&router, request).await.status, status, "{peer} {host}");
    }
    let mut draft = site.draft("ListQueues", &json!({})).await;
    draft.peer = "127.0.0.1:50000";
    let mut request = draft.request(&any);
    request.headers_mut().insert("host", "localhost".parse().unwrap());
    request.headers_mut().insert("origin", "http://evil.example".parse().unwrap());
    assert_eq!(send(&router, request).await.status, 403);
}

#[tokio::test]
async fn a_bearer_token_is_as_good_as_a_signature() {
    let site = Site::new().await;
    let made =
        token::make(site.client(), &NewToken::new("bo", Role::Read), token::random().unwrap()).await.unwrap();
    let mut request = site.draft("ListQueues", &json!({})).await.request(&site.admin);
    let bearer = format!("Bearer {}", made.secret.expose());
    request.headers_mut().insert("authorization", bearer.parse().unwrap());
    send(&site.router, request).await.ok();
}

#[tokio::test]
async fn a_body_is_bounded_before_it_is_read_and_unknown_callers_send_none() {
    let site = Site::new().await;
    let draft = site.draft("ListQueues", &json!({})).await;
    let (parts, _) = draft.request(&site.admin).into_parts();
    let large = Body::from(vec![b' '; 8 * 1024 * 1024 + 1]);
    let answer = send(&site.router, Request::from_parts(parts, large)).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "RequestEntityTooLarge"));
    let unknown = Key { id: "00c0ffee".to_owned(), secret: "x".to_owned() };
    let (parts, _) = draft.request(&unknown).into_parts();
    // A body that never arrives.
    let never = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let answer = send(&site.router, Request::from_parts(parts, never)).await;
    assert_eq!(answer.code(), "InvalidClientTokenId");
}

/// The right is checked when the wait begins, and again each time it goes on.
#[tokio::test(start_paused = true)]
async fn a_receive_ends_when_its_key_is_revoked() {
    let site = Site::with_queue().await;
    let key = site.key(Role::Operate, None).await;
    let ask = json!({"QueueUrl": url("q"), "WaitTimeSeconds": 20});
    let mut waits = Box::pin(site.ask_as(&key, "ReceiveMessage", ask));
    for _ in 0..50 {
        assert!(poll!(&mut waits).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(token::revoke(site.client(), &key.id).await.unwrap());
    tokio::time::advance(Duration::from_secs(1)).await;
    site.send("x").await;
    assert_eq!(waits.await.code(), "InvalidClientTokenId");
    assert_eq!(site.bodies("q", 1).await, ["x"]);
}

/// A router whose reads of documents are counted, and take a minute while there is a number in `slow`.
fn watched(site: &Site) -> (Router, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (reads, slow) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, chosen) = (Arc::clone(&reads), Arc::clone(&slow));
    let store = FaultyStore::new(Arc::clone(site.client().store()), move |verb| {
        if verb != "doc" {
            return Fault::Pass;
        }
        counted.fetch_add(1, Ordering::Relaxed);
        if chosen.load(Ordering::Relaxed) == 0 { Fault::Pass } else { Fault::Delay(Duration::from_mins(1)) }
    });
    (Server::new(&Client::new(Arc::new(store))).sqs().router(&site.stop), reads, slow)
}

#[tokio::test(start_paused = true)]
async fn unknown_keys_do_not_hold_up_a_known_one() {
    let site = Site::new().await;
    let (router, _, slow) = watched(&site);
    let unknown = |n: usize| Key { id: format!("{n:08x}"), ..site.admin.clone() };
    site.ask_at(&router, "ListQueues", json!({})).await.ok();
    // The key is believed no longer. Whether there are tokens at all is looked up again.
    tokio::time::advance(Duration::from_secs(1)).await;
    let draft = site.draft("ListQueues", &json!({})).await;
    assert_eq!(send(&router, draft.request(&unknown(0))).await.code(), "InvalidClientTokenId");
    slow.store(1, Ordering::Relaxed);
    let mut guesses = Vec::new();
    for n in 1..=30 {
        let mut guess = Box::pin(send(&router, draft.request(&unknown(n))));
        assert!(poll!(&mut guess).is_pending());
        guesses.push(guess);
    }
    slow.store(0, Ordering::Relaxed);
    let answer = timeout(Duration::from_secs(1), site.ask_at(&router, "ListQueues", json!({}))).await;
    answer.unwrap().ok();
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_is_looked_up_once_in_a_second() {
    let site = Site::new().await;
    let (router, reads, _) = watched(&site);
    let draft = site.draft("ListQueues", &json!({})).await;
    let unknown = Key { id: "00c0ffee".to_owned(), ..site.admin.clone() };
    let mut before = 0;
    for _ in 0..2 {
        for _ in 0..50 {
            assert_eq!(send(&router, draft.request(&unknown)).await.code(), "InvalidClientTokenId");
        }
        // The key, whether there are tokens at all, and what the server reads for itself.
        let now = reads.load(Ordering::Relaxed);
        assert!((before + 2..before + 5).contains(&now), "{before} {now}");
        before = now;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

/// Large bodies are hashed elsewhere, and their signatures are checked as those of small ones.
#[tokio::test]
async fn a_large_body_is_checked_too() {
    let site = Site::with_queue().await;
    let text = "x".repeat(200_000);
    let body = json!({"QueueUrl": url("q"), "MessageBody": text});
    site.ask("SendMessage", body.clone()).await.ok();
    let draft = site.draft("SendMessage", &body).await;
    let (parts, _) = draft.request(&site.admin).into_parts();
    let changed = Body::from(draft.body.replace("xx\"", "xy\""));
    let answer = send(&site.router, Request::from_parts(parts, changed)).await;
    assert_eq!(answer.code(), "SignatureDoesNotMatch");
    assert_eq!(site.bodies("q", 10).await, [text]);
}

/// Many SDKs sign the hash of the body. Then a wrong signature is seen without the body.
#[tokio::test]
async fn a_signed_hash_is_checked_before_the_body_and_against_it() {
    let site = Site::new().await;
    let mut draft = site.draft("ListQueues", &json!({})).await;
    draft.signed.insert(2, "x-amz-content-sha256");
    send(&site.router, draft.request(&site.admin)).await.ok();
    let (parts, _) = draft.request(&site.admin).into_parts();
    let answer = send(&site.router, Request::from_parts(parts, Body::from("{ }"))).await;
    assert_eq!(answer.code(), "SignatureDoesNotMatch");
    let wrong = Key { secret: "x".to_owned(), ..site.admin.clone() };
    let (parts, _) = draft.request(&wrong).into_parts();
    let never = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let answer = send(&site.router, Request::from_parts(parts, never)).await;
    assert_eq!(answer.code(), "SignatureDoesNotMatch");
}

/// Who knows the id of a key can send bodies that are never checked, and must not take the room of those who have the key.
#[tokio::test]
async fn bodies_that_never_end_hold_up_nobody_who_has_the_key() {
    let site = Site::with_queue().await;
    let known = Key { secret: "x".to_owned(), ..site.admin.clone() };
    let draft = site.draft("SendMessage", &json!({})).await;
    let mut held = Vec::new();
    for _ in 0..40 {
        let (mut parts, _) = draft.request(&known).into_parts();
        parts.headers.remove("x-amz-content-sha256");
        let first = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; 8 * 1024 * 1024 - 1])]);
        let body = Body::from_stream(first.chain(futures_util::stream::pending()));
        let router = site.router.clone();
        held.push(Box::pin(async move { send(&router, Request::from_parts(parts, body)).await }));
    }
    // Until each has sent what it sends: four of them fit.
    for _ in 0..10_000 {
        held.retain_mut(|request| request.now_or_never().is_none());
        if held.len() <= 4 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(held.len(), 4);
    // With a hash that is signed and without one.
    let body = json!({"QueueUrl": url("q"), "MessageBody": "x".repeat(200_000)});
    site.ask("SendMessage", body.clone()).await.ok();
    let mut request = site.draft("SendMessage", &body).await.request(&site.admin);
    request.headers_mut().remove("x-amz-content-sha256");
    let answer = send(&site.router, request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}
