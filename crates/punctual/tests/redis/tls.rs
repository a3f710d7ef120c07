//! TLS, with certificates of our own.

use punctual::{
    Client, ErrorKind,
    store::{Store, clock::Clock, redis::RedisStore},
};

use crate::{
    jobs, open, reserve,
    server::{Certificates, Server},
};

/// Why a store can't be opened; what is said of it says what to try, and no password.
pub(crate) async fn refusal(url: &str) -> (ErrorKind, String, String) {
    let error = RedisStore::open(url, Clock::System).await.expect_err(url);
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    (error.kind(), error.to_string(), error.hint().expect("there is something to try").to_owned())
}

/// A server that takes only TLS is spoken to over it, by those whom it lets in.
#[tokio::test]
async fn a_store_is_reached_over_tls() {
    let certificates = Certificates::new();
    let server = Server::encrypted(&certificates, &["--requirepass", "secret"]);
    let url = format!("rediss://:secret@127.0.0.1:{}?ca={}", server.port(), certificates.file("ca.pem"));
    let store = open(&url).await;
    assert!(
        store.url().starts_with(&format!("rediss://127.0.0.1:{}/0?ca=", server.port())),
        "{}",
        store.url()
    );
    let client = Client::new(store.clone());
    client.push(jobs(&client, 100)).await.unwrap();
    assert_eq!(store.reserve(&reserve(1, 100)).await.unwrap().jobs.len(), 100);
    let clients = server.say(&["-a", "secret", "CLIENT", "LIST"]);
    assert!(clients.contains(&format!("laddr=127.0.0.1:{}", server.port())), "{clients}");
    assert_eq!(refusal(&url.replace(":secret@", ":secrets@")).await.0, ErrorKind::Unsupported);
}

/// A server asks for a certificate by default.
#[tokio::test]
async fn who_comes_may_have_a_certificate() {
    let certificates = Certificates::new();
    let server = Server::encrypted(&certificates, &["--tls-auth-clients", "yes"]);
    let url = format!("rediss://127.0.0.1:{}?ca={}", server.port(), certificates.file("ca.pem"));
    let (kind, message, hint) = refusal(&url).await;
    assert_eq!((kind, message.as_str()), (ErrorKind::Unsupported, "the server does not trust who connects"));
    assert!(hint.contains("cert="), "{hint}");
    let own = |name: &str| format!("&cert={}&key={}", certificates.file("here.pem"), certificates.file(name));
    assert_eq!(open(&(url.clone() + &own("here.key"))).await.count(None).await.unwrap().total(), 0);
    assert_eq!(refusal(&(url.clone() + &own("ca.key"))).await.0, ErrorKind::Unsupported);
    let (kind, message, _) = refusal(&(url + &own("here.pem"))).await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.contains("here.pem"), "{message}");
}

/// Who is not the server that is wanted is not spoken to, and the error says which part is wrong.
#[tokio::test]
async fn a_server_that_can_not_be_trusted_is_refused() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = Server::encrypted(&ours, &[]);
    let url = |port: u16, ca: &str| format!("rediss://:secret@127.0.0.1:{port}?ca={ca}");
    let (kind, message, hint) = refusal(&url(server.port(), &theirs.file("ca.pem"))).await;
    assert_eq!((kind, message.as_str()), (ErrorKind::Unsupported, "the server's certificate is not trusted"));
    assert!(hint.contains("ca="), "{hint}");
    let system = format!("rediss://:secret@127.0.0.1:{}", server.port());
    assert_eq!(refusal(&system).await.1, message, "the system does not know it");
    let (kind, message, _) = refusal(&url(server.port(), &ours.file("extensions"))).await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.contains("extensions"), "{message}");

    let (cert, key) = (ours.file("elsewhere.pem"), ours.file("elsewhere.key"));
    let elsewhere = Server::encrypted(&ours, &["--tls-cert-file", &cert, "--tls-key-file", &key]);
    let (kind, message, _) = refusal(&url(elsewhere.port(), &ours.file("ca.pem"))).await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert_eq!(message, "the server's certificate is for another host");
}

/// TLS on one side alone is told from a server that is not there.
#[tokio::test]
async fn tls_on_one_side_is_told() {
    let certificates = Certificates::new();
    let (plain, encrypted) = (Server::listening(&[]), Server::encrypted(&certificates, &[]));
    let ca = certificates.file("ca.pem");
    let (kind, message, _) = refusal(&format!("rediss://:secret@127.0.0.1:{}?ca={ca}", plain.port())).await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert_eq!(message, "the server does not speak TLS there");
    let (kind, _, hint) = refusal(&format!("redis://:secret@127.0.0.1:{}", encrypted.port())).await;
    assert_eq!(kind, ErrorKind::Unavailable);
    assert!(hint.contains("rediss://"), "{hint}");
}
