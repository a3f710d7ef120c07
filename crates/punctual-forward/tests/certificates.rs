//! Client certificates: servers that demand one take a job with it, and none without.

#![cfg(all(unix, feature = "amqp", feature = "nats", feature = "webhook"))]
#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

#[path = "../../punctual/tests/support/certificates.rs"]
#[allow(dead_code, reason = "servers of Redis take options of it")]
mod certificates;
#[path = "support/nats.rs"]
mod nats;
#[path = "support/work.rs"]
mod work;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::{ConnectOptions, jetstream};
use certificates::Certificates;
use punctual::{ErrorKind, State};
use punctual_forward::{Forwarder, Target};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};
use work::Jobs;

/// How long something is waited for.
const PATIENCE: Duration = Duration::from_mins(1);

/// A server that demands a client certificate of the authority; it answers each request by 200, and counts.
struct Server {
    port: u16,
    /// Connections that were refused.
    refused: Arc<AtomicU64>,
    /// The first bytes of the last one that was not.
    heard: Arc<std::sync::Mutex<Vec<u8>>>,
}

impl Server {
    async fn start(certificates: &Certificates) -> Self {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(certificates.file("ca.pem")).unwrap()).unwrap();
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)).build();
        let chain = vec![CertificateDer::from_pem_file(certificates.file("here.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(certificates.file("here.key")).unwrap();
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_client_cert_verifier(clients.unwrap()).with_single_cert(chain, key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (refused, heard) = (Arc::<AtomicU64>::default(), Arc::default());
        let server = Self { port, refused: Arc::clone(&refused), heard: Arc::clone(&heard) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let heard = Arc::clone(&heard);
                tokio::spawn(async move {
                    let mut bytes = vec![0; 4_096];
                    while let Ok(n @ 1..) = stream.read(&mut bytes).await {
                        *heard.lock().unwrap() = bytes[..n].to_vec();
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                        let _ = stream.write_all(answer).await;
                        let _ = stream.shutdown().await;
                    }
                });
            }
        });
        server
    }

    fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap().clone()
    }
}

/// With the authority of the tests, and with a client certificate or without.
fn forwarder(certificates: &Certificates, to: &str, has_certificate: bool) -> Forwarder {
    let mut target = Target::parse(to).unwrap().ca_file(certificates.file("ca.pem"));
    if to.starts_with("https") {
        target = target.allow_private();
    }
    if has_certificate {
        target = target.client_certificate(certificates.file("here.pem"), certificates.file("here.key"));
    }
    target.forwarder().unwrap()
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A job waits while its forwarder has no certificate, and spends no attempt; with one it is done.
async fn needs_a_certificate(certificates: &Certificates, to: &str) {
    let jobs = Jobs::new().await;
    let job = jobs.put(jobs.mail()).await;
    let without = forwarder(certificates, to, false);
    let working = jobs.forward(&without);
    until("it is not tried again", || 2 <= without.counts().again).await;
    drop(working);
    until("it is still on its way", || without.counts().in_flight == 0).await;
    let waits = jobs.client.get(job.id).await.unwrap().unwrap();
    assert!(!waits.state.is_ended() && waits.attempt == 1, "{waits:?}");
    assert_eq!(without.counts().forwarded, 0);

    // A worker that was stopped at once keeps its lease for a while: another job shows the rest.
    let with = forwarder(certificates, to, true);
    with.check().await.unwrap();
    let _working = jobs.forward(&with);
    let job = jobs.put(jobs.mail()).await;
    assert_eq!(jobs.ended(job.id).await.state, State::Done, "{:?}", with.counts());
}

#[tokio::test]
async fn a_webhook_that_demands_a_certificate_takes_jobs_with_one_only() {
    let certificates = Certificates::new();
    let server = Server::start(&certificates).await;
    needs_a_certificate(&certificates, &format!("https://127.0.0.1:{}/hook", server.port)).await;
    assert!(2 <= server.refused.load(Ordering::Relaxed));
    assert!(server.heard().starts_with(b"POST /hook HTTP/1.1\r\n"), "{:?}", server.heard());
}

#[tokio::test]
async fn a_server_of_nats_that_demands_a_certificate_takes_jobs_with_one_only() {
    let certificates = Certificates::new();
    let [ca, cert, key] = ["ca.pem", "here.pem", "here.key"].map(|name| certificates.file(name));
    let settings =
        format!("tls {{ cert_file: \"{cert}\", key_file: \"{key}\", ca_file: \"{ca}\", verify: true }}");
    let server = nats::Server::start(&[], &settings);
    let options = ConnectOptions::new().add_root_certificates(ca.into()).require_tls(true);
    let options = options.add_client_certificate(cert.into(), key.into());
    let client = options.connect(format!("tls://{}", server.place())).await.unwrap();
    let config = jetstream::stream::Config {
        name: "s".to_owned(),
        subjects: vec!["s".to_owned()],
        ..Default::default()
    };
    jetstream::new(client).create_stream(config).await.unwrap();
    needs_a_certificate(&certificates, &format!("nats://{}?subject=s", server.place())).await;
}

/// The first bytes of the protocol come only when both sides have shown their certificates.
#[tokio::test]
async fn a_broker_that_demands_a_certificate_is_spoken_to_with_one_only() {
    let certificates = Certificates::new();
    let server = Server::start(&certificates).await;
    let to = format!("amqps://127.0.0.1:{}/?routing_key=q", server.port);
    let refused = forwarder(&certificates, &to, false).check().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(server.heard(), b"");
    // It is no broker, so that nothing more comes of it.
    assert!(forwarder(&certificates, &to, true).check().await.is_err());
    assert_eq!(server.heard(), b"AMQP\0\0\x09\x01");
}

/// An address with TLS for a broker without it, and the other way round: what to write instead is said.
#[tokio::test]
async fn a_broker_that_uses_tls_or_not_as_its_address_does_not_is_named() {
    let certificates = Certificates::new();
    let with_tls = Server::start(&certificates).await;
    // What RabbitMQ does with a connection that does not begin with its protocol.
    let without = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = without.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = without.accept().await {
            let _ = stream.read(&mut [0; 1_024]).await;
            let _ = stream.write_all(b"AMQP\0\0\x09\x01").await;
        }
    });
    for (scheme, port, advice) in
        [("amqp", with_tls.port, "write amqps://"), ("amqps", port, "write amqp://")]
    {
        let to = format!("{scheme}://127.0.0.1:{port}/?routing_key=q");
        let refused = Forwarder::to(&to).unwrap().check().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        let text = refused.with_causes();
        assert!(text.contains(advice), "{scheme}: {text}");
    }
}

#[test]
fn certificates_that_can_not_be_used_are_refused_at_the_start() {
    let certificates = Certificates::new();
    let file = |name| certificates.file(name);
    let target = |to| Target::parse(to).unwrap();
    let https = || target("https://example.com/");
    for (target, message) in [
        (https().client_certificate(file("none.pem"), file("here.key")), "could not read "),
        (https().client_certificate(file("here.pem"), file("elsewhere.key")), "the key in "),
        (https().client_certificate(file("here.pem"), file("ca.pem")), "ca.pem holds no private key in PEM"),
        (
            https().client_certificate(file("here.key"), file("here.key")),
            "here.key holds no certificate in PEM",
        ),
        (https().ca_file(file("extensions")), "extensions holds no certificate in PEM"),
        (
            target("amqp://h?routing_key=q").ca_file(file("ca.pem")),
            "certificates are for connections with TLS",
        ),
        (
            target("http://h/").allow_private().ca_file(file("ca.pem")),
            "certificates are for connections with TLS",
        ),
        (target("rediss://h?stream=s").ca_file(file("ca.pem")), "certificates are for webhooks"),
        (
            target("webhook:{header.url}").client_certificate(file("here.pem"), file("here.key")),
            "a client certificate would go to every receiver",
        ),
    ] {
        let error = target.forwarder().unwrap_err();
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Invalid, true), "{error}");
        assert!(!error.to_string().contains("BEGIN"), "{error}");
    }
}
