//! Who is let in, by signatures.

use std::time::Duration;

use axum::{body::Body, http::Request};
use punctual::{CancellationToken, Client};
use punctual_server::{
    Server,
    token::{self, NewToken, Role},
};
use serde_json::json;

use crate::site::{Key, Site, date, key, send};

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
