//! A server that is there and refuses: held up by somebody's script, a replica for a while, or reading its files. What
//! comes back is typed, says that nothing was changed, and is repeated until it passes.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use punctual::{
    Client, ErrorKind,
    store::{CallId, Store},
};

use super::{console::Console, drill::Drill, jobs, open, reserve, server::Server};

/// How long a script holds the server up.
const BUSY: Duration = Duration::from_secs(8);
/// After so long the server refuses instead of keeping others waiting; its own default is 5 s.
const BUSY_AFTER_MS: &str = "100";
/// How long the server is a replica.
const REPLICA: Duration = Duration::from_secs(2);
/// Keys that a server reads again, and how long it takes over each.
const KEYS: u32 = 4_000;
const KEY_LOAD_DELAY_US: &str = "1000";
/// How long a server may take to get into, or out of, a state.
const CHANGE_MAX: Duration = Duration::from_mins(1);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until the server answers a command so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < CHANGE_MAX, "the server does not become {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// A script that never ends by itself.
struct Loop {
    socket: PathBuf,
    _held: Console,
}

impl Loop {
    fn begin(server: &Server) -> Self {
        let socket = server.socket();
        let mut held = Console::open(&socket).unwrap();
        held.send(&["EVAL", "while true do end", "0"]).unwrap();
        Self { socket, _held: held }
    }

    /// Refused only once the server says that it is busy.
    async fn until_busy(&self) {
        let ping = || Console::open(&self.socket).and_then(|mut console| console.say(&["PING"]));
        until("busy", || ping().is_err_and(|e| e.to_string().starts_with("BUSY"))).await;
    }

    async fn end(self) {
        let say = |words: &[&str]| Console::open(&self.socket).and_then(|mut console| console.say(words));
        say(&["SCRIPT", "KILL"]).unwrap();
        // The script ends a little later.
        until("free", || say(&["PING"]).is_ok()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_holds_the_server_up_is_waited_for() {
    // The server's own threshold: answers stay out for 5 s, then there are refusals.
    let server = Server::start(&[]);
    let url = server.url();
    let mut drill = Drill::begin("busy for 8 s", &url).await;
    drill.work(2, &url).await;
    drill.produce(1, &url).await;
    drill.until_done(50).await;
    let busy = Loop::begin(&server);
    tokio::time::sleep(BUSY).await;
    busy.end().await;
    drill.rest(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_refuses_every_verb_as_unavailable() {
    let server = Server::start(&["--busy-reply-threshold", BUSY_AFTER_MS]);
    let store = open(&server.url()).await;
    let client = Client::new(store.clone());
    client.push(jobs(&client, 3)).await.unwrap();
    let lease = store.reserve(&reserve(1, 1)).await.unwrap().jobs[0].lease;
    let busy = Loop::begin(&server);
    busy.until_busy().await;
    let answers = [
        store.enqueue(CallId { instance: 7, number: 1 }, &jobs(&client, 1)).await.err(),
        store.reserve(&reserve(2, 1)).await.err(),
        store.extend(&[lease.into()]).await.err(),
        store.count(None).await.err(),
        store.sweep(1).await.err(),
    ];
    for error in answers {
        let error = error.expect("the server is busy");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.hint().is_some(), "{error:?}");
    }
    busy.end().await;
    assert_eq!(store.count(None).await.unwrap().total(), 3);
    assert_eq!(store.reserve(&reserve(2, 9)).await.unwrap().jobs.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_waited_for_until_it_takes_writes() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    let client = Client::new(store.clone());
    let mut drill = Drill::begin("read only for 2 s", &url).await;
    drill.work(2, &url).await;
    drill.produce(1, &url).await;
    let mut console = Console::open(&server.socket()).unwrap();
    for _ in 0..3 {
        drill.until_done(50).await;
        // A primary that nobody is.
        console.say(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
        let call = CallId { instance: 7, number: 1 };
        let error = store.enqueue(call, &jobs(&client, 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        tokio::time::sleep(REPLICA).await;
        console.say(&["REPLICAOF", "NO", "ONE"]).unwrap();
    }
    drill.rest(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_reads_its_files_is_waited_for() {
    let mut server = Server::start(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--key-load-delay",
        KEY_LOAD_DELAY_US,
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    let url = server.url();
    let store = open(&url).await;
    let mut drill = Drill::begin("killed, and read its files", &url).await;
    let mut console = Console::open(&server.socket()).unwrap();
    for n in 0..KEYS {
        console.send(&["SET", &format!("filler:{n}"), "x"]).unwrap();
    }
    drill.work(2, &url).await;
    drill.produce(1, &url).await;
    drill.until_done(50).await;
    server.kill();
    server.begin_restart();
    let loading = || {
        let pong = Console::open(&server.socket()).and_then(|mut console| console.say(&["PING"]));
        pong.is_err_and(|e| e.to_string().starts_with("LOADING"))
    };
    assert!(loading(), "it has read its files already");
    let (begin, mut refused) = (Instant::now(), 0);
    while let Err(error) = store.count(None).await {
        assert!(error.is_repeatable(), "{error:?}");
        assert!(begin.elapsed() < CHANGE_MAX, "{error:?}");
        refused += u32::from(error.to_string().contains("LOADING"));
    }
    assert_ne!(refused, 0, "nobody met the server while it read its files");
    drill.rest(1).await;
}
