//! What only the store on Redis has to show: a full server, a level that it can't give, bells, and what is not ours.

#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

#[path = "support/redis.rs"]
mod server;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use punctual::{
    Client, ErrorKind, NewJob, Payload, When,
    store::{
        Call, Check, CheckLevel, Durability, Enqueued, Keep, QueueSettings, Reserve, Settlement, Store,
        Verdict, Want, clock::Clock, redis::RedisStore,
    },
};
use server::{Certificates, Server};

async fn open(url: &str) -> Arc<RedisStore> {
    Arc::new(RedisStore::open(url, Clock::System).await.unwrap())
}

fn reserve(number: u64, n: usize) -> Reserve {
    let wants = vec![Want { queue: "mail".into(), share: n, at_most: n }];
    Reserve { call: Call { instance: 1, number }, worker: "w".into(), wants, n, lease: None }
}

fn jobs(client: &Client, n: usize) -> Vec<NewJob> {
    let job = || NewJob::new(client.make_id(), "email.send", "mail", Payload::json(vec![b'1'; 10_000]));
    (0..n).map(|_| job()).collect()
}

/// S17: a full server refuses new jobs with a typed error, and writes nothing for them; waiting and running ones drain all
/// the same; then there is room again.
#[tokio::test]
async fn a_full_server_drains() {
    let server = Server::start(&["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"]);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    client
        .queue("mail")
        .set(QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() })
        .await
        .unwrap();
    let mut enqueued = 0;
    let error = loop {
        let call = Call { instance: 7, number: enqueued + 1 };
        match store.enqueue(call, &jobs(&client, 1)).await {
            Ok(answers) => assert!(answers[0].is_new()),
            Err(error) => break error,
        }
        enqueued += 1;
    };
    assert_eq!(error.kind(), ErrorKind::StoreFull);
    assert!(100 < enqueued);
    assert_eq!(
        client.count(None).await.unwrap().waiting,
        enqueued,
        "nothing was written for the refused one"
    );

    let mut done = 0;
    for number in 1.. {
        let batch = store.reserve(&reserve(number, 50)).await.unwrap();
        if batch.jobs.is_empty() {
            break;
        }
        let leases: Vec<_> = batch.jobs.iter().map(|reserved| reserved.lease).collect();
        let _ = store.extend(&leases).await.unwrap();
        let settle = |lease| Settlement { lease, verdict: Verdict::Ack };
        let acks: Vec<_> = leases.into_iter().map(settle).collect();
        done += store.settle(&acks, None).await.unwrap().0.len() as u64;
    }
    assert_eq!(done, enqueued);
    assert_eq!(client.count(None).await.unwrap().total(), 0);
    let call = Call { instance: 7, number: enqueued + 1 };
    assert!(store.enqueue(call, &jobs(&client, 1)).await.unwrap()[0].is_new());
}

/// S17: before a full server refuses a job, it gives up done jobs that it keeps.
#[tokio::test]
async fn kept_jobs_make_room() {
    let server = Server::start(&["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"]);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    // Several times what fits.
    for number in 1..=1_000 {
        let answers = store.enqueue(Call { instance: 7, number }, &jobs(&client, 1)).await.unwrap();
        assert!(matches!(answers[0], Enqueued::Inserted { .. }), "{number}");
        let batch = store.reserve(&reserve(number, 1)).await.unwrap();
        let ack = Settlement { lease: batch.jobs[0].lease, verdict: Verdict::Ack };
        let _ = store.settle(&[ack], None).await.unwrap();
    }
    let counts = client.count(None).await.unwrap();
    assert_eq!(counts.total(), counts.done);
    assert!(counts.done < 1_000);
}

/// S1: a level that the server can't give is refused instead of pretended.
#[tokio::test]
async fn full_durability_needs_a_server_that_syncs() {
    let url = |server: &Server| server.url() + "&durability=full";
    let error = RedisStore::open(&url(Server::shared()), Clock::System).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let synced = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    assert_eq!(open(&url(&synced)).await.durability(), Durability::Full);
}

/// Promises that a server would break are refused when the store is opened, and so are keys that are somebody else's.
#[tokio::test]
async fn what_is_wrong_with_a_server_is_said_when_it_is_opened() {
    let open = |url: String| async move { RedisStore::open(&url, Clock::System).await };
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let error = open(server.url()).await.unwrap_err();
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Unsupported, true), "{error:?}");
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let allowed = open(server.url() + "&eviction=allowed").await.unwrap();
    assert!(allowed.url().ends_with("&eviction=allowed"), "{}", allowed.url());

    let error = open(Server::start(&["--cluster-enabled", "yes"]).url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("cluster"), "{error}");

    let url = Server::shared().url();
    let prefix = url.split_once("prefix=").unwrap().1;
    let mut other = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let () = redis::cmd("SET").arg(format!("{prefix}:{{0}}:t")).arg("mine").query(&mut other).unwrap();
    let error = open(url.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Corrupt, true), "{error:?}");
    assert!(error.to_string().contains(&format!("\"{prefix}:{{0}}:t\" is a string")), "{error}");
}

/// What the server doesn't let a user ask is not held against it.
#[tokio::test]
async fn a_user_who_may_not_ask_about_the_server_may_work_on_it() {
    let ana = ["--user", "ana", "on", ">secret", "~*", "+@all", "-info", "-type", "-config"];
    let server = Server::start(&ana);
    let url = server.url() + "&user=ana&pass=secret";
    let client = Client::new(open(&url).await);
    client.push(jobs(&client, 1)).await.unwrap();
    assert_eq!(client.count(None).await.unwrap().waiting, 1);
}

/// The doctor tells what stands well and what does not, and leaves no key behind.
#[tokio::test]
async fn the_doctor_tells_how_it_stands_with_the_server() {
    let server = Server::start(&["--user", "ana", "on", ">secret", "~*", "+@all", "-info", "-hincrby"]);
    let names = |checks: &[Check], level| -> Vec<&str> {
        checks.iter().filter(|check| check.level == level).map(|check| check.name).collect()
    };
    let checks = open(&server.url()).await.doctor().await.unwrap();
    assert_eq!(names(&checks, CheckLevel::Fail), [""; 0], "{checks:#?}");
    assert_eq!(names(&checks, CheckLevel::Warn), ["persistence"], "{checks:#?}");
    for (name, words) in [
        ("version", "Redis "),
        ("role", "primary"),
        ("eviction", "noeviction"),
        ("memory", "MiB in use"),
        ("durability", "fast"),
        ("keys", "none"),
        ("rights", "user default may do all"),
        ("clock", "differ by "),
        ("bell", "was heard after "),
    ] {
        let check = checks.iter().find(|check| check.name == name).expect(name);
        assert!(check.text.contains(words), "{check:?}");
    }

    let url = server.url() + "&user=ana&pass=secret";
    let checks = open(&url).await.doctor().await.unwrap();
    assert_eq!(names(&checks, CheckLevel::Warn), ["info"], "{checks:#?}");
    assert_eq!(names(&checks, CheckLevel::Fail), ["rights"], "{checks:#?}");
    assert!(!format!("{checks:?}").contains("secret"));

    let mut other = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut other).unwrap();
    assert_eq!(keys, [""; 0]);

    let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut other).unwrap();
    let checks = open(&server.url()).await.doctor().await.unwrap();
    assert!(names(&checks, CheckLevel::Fail).contains(&"role"), "{checks:#?}");
}

/// A job for now wakes who waits, also in another process; so does an earlier one than those that wait.
#[tokio::test]
async fn a_new_job_ends_a_wait() {
    let url = Server::shared().url();
    let (waiting, other) = (open(&url).await, open(&url).await);
    let client = Client::new(other.clone());
    let queues = ["mail".to_owned()];
    for run_at in [When::Now, When::In(Duration::from_millis(30))] {
        assert_eq!(waiting.reserve(&reserve(u64::MAX, 0)).await.unwrap().jobs, []);
        let wait = waiting.wait(&queues, Duration::from_mins(1));
        let enqueue = async {
            let job = NewJob { run_at, ..jobs(&client, 1).remove(0) };
            client.push(vec![job]).await.unwrap();
        };
        let (woken, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(30), wait), enqueue);
        woken.expect("it is rung").unwrap();
        client.queue("mail").purge(|_| ()).await.unwrap();
    }
}

/// What else is on the server is none of our business.
#[tokio::test]
async fn keys_of_others_are_left_alone() {
    let server = Server::start(&[]);
    let (ours, theirs) = (open(&server.url()).await, open(&server.url()).await);
    let client = Client::new(theirs.clone());
    client.push(jobs(&client, 3)).await.unwrap();
    assert_eq!(ours.count(None).await.unwrap().total(), 0);
    assert_eq!(ours.queues(None).await.unwrap(), Vec::<String>::new());
    assert!(ours.sweep(100).await.is_ok());
    assert_eq!(theirs.count(None).await.unwrap().waiting, 3);
}

// ── whom the server lets in ──

/// The user of the guide may do nothing that no script and no connection does.
#[test]
fn the_user_of_the_guide_is_minimal() {
    let lua = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/lua");
    let mut needed =
        BTreeSet::from(["bzpopmin", "evalsha", "info", "pexpire", "script|load", "type"].map(str::to_owned));
    for entry in std::fs::read_dir(lua).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let calls = text.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
        needed.extend(calls.map(str::to_lowercase));
    }
    let line = server::acl::line("always");
    let granted = line.split(' ').filter_map(|word| word.strip_prefix('+').map(str::to_owned));
    assert_eq!(granted.collect::<BTreeSet<_>>(), needed);
}

/// `full` needs the right to ask for settings, and is refused without it instead of pretended.
#[tokio::test]
async fn a_level_that_can_not_be_checked_is_refused() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    server.admit(&["always"]);
    let url = server.url() + "&durability=full";
    assert_eq!(refusal(&url).await.0, ErrorKind::Unsupported);
    server.admit(&["for durability=full"]);
    assert_eq!(open(&url).await.durability(), Durability::Full);
}

/// Keys of others are out of reach for the user of the guide.
#[tokio::test]
async fn another_prefix_is_refused() {
    let url = Server::shared().url().replace("prefix=t", "prefix=other");
    let error = open(&url).await.count(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("user"), "{error:?}");
}

// ── TLS ──

/// Why a store can't be opened; what is said of it says what to try, and no password.
async fn refusal(url: &str) -> (ErrorKind, String, String) {
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
