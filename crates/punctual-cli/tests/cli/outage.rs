//! The store is away in each way, while a worker, a forwarder and a server need it. No probe asks for a restart, each process says what it waits
//! for, and goes on afterwards.
//!
//! `PUNCTUAL_OUTAGE_S=120 cargo test -p punctual-cli --test cli outage -- --nocapture` holds each for two minutes, and prints when each said it.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    exec::{Worker, signal},
    fixture::{A, B, Cli, said, wait},
    health::{Reporter, free_addr},
    listen::get,
    redis::server::{Server, acl},
};

/// How long an outage is held at least, unless a person says so.
const HOLD: Duration = Duration::from_secs(6);
/// How long is waited until all processes have said it: many times longer than a quiet machine takes.
const SAID_MAX: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(100);

/// How long each outage is held.
fn hold() -> Duration {
    let asked = std::env::var("PUNCTUAL_OUTAGE_S").ok().and_then(|seconds| seconds.parse().ok());
    asked.map_or(HOLD, Duration::from_secs)
}

/// A worker, a forwarder and a server of one store.
struct Scene {
    t: Cli,
    /// Where the forwarder puts its jobs.
    _to: Server,
    worker: Reporter,
    forwarder: Reporter,
    server: Worker,
    addr: String,
}

impl Scene {
    fn on_redis() -> (Server, Self) {
        let store = Server::admitting();
        let scene = Self::of(Cli::with_store(&store.url()));
        (store, scene)
    }

    fn of(t: Cli) -> Self {
        let to = Server::start(&[]);
        let stream = format!("redis+unix://{}?stream=s", to.socket().display());
        let worker = Reporter::start(&t, &["work", "-q", "mail", "--exec", "true"]);
        let forwarder = Reporter::start(&t, &["forward", "-q", "out", "--to", &stream]);
        let addr = free_addr().to_string();
        let server = Worker(Some(t.command(["serve", "--listen", &addr]).spawn().unwrap()));
        let scene = Self { t, _to: to, worker, forwarder, server, addr };
        scene.is_well();
        scene
    }

    /// Waits until all are well.
    fn is_well(&self) {
        self.worker.answers("ok, ");
        self.forwarder.answers("ok, ");
        let ready = || get(&self.addr, "/readyz").filter(|line| line.starts_with("ok, "));
        wait(ready, || "the server is never ready".to_owned());
    }

    /// Has jobs become due during an outage.
    fn push(&self) {
        self.t.ok(&format!("push k -q mail --id {A} --in 4s"));
        self.t.ok(&format!("push k -q out --id {B} --in 4s"));
    }

    /// Looks at all probes until each process has said what it waits for, and the time is over. Prints when each said it.
    fn looks(&self, kind: &str, is_silent: bool) {
        let begin = Instant::now();
        let mut seen: [Option<Duration>; 3] = [None; 3];
        while begin.elapsed() < hold() || !is_silent && seen.contains(&None) {
            for (at, reporter) in [(0, &self.worker), (1, &self.forwarder)] {
                let (head, line) = wait(|| reporter.asked(), || format!("{kind}: a probe is not answered"));
                assert!(
                    head.starts_with("HTTP/1.1 200 OK"),
                    "{kind}: a restart is asked for: {head}\n{line}"
                );
                if line.starts_with("held up: ") {
                    seen[at].get_or_insert(begin.elapsed());
                }
            }
            wait(|| get(&self.addr, "/healthz"), || format!("{kind}: a restart of the server is asked for"));
            if get(&self.addr, "/readyz").is_none() {
                seen[2].get_or_insert(begin.elapsed());
            }
            assert!(
                begin.elapsed() < SAID_MAX + hold(),
                "{kind}: worker, forwarder, server said it after {seen:?}"
            );
            std::thread::sleep(LOOK);
        }
        println!("{kind}: held for {:?}; worker, forwarder, server said it after {seen:?}", begin.elapsed());
    }

    /// What an operator asks during an outage fails with its cause.
    fn asks(&self, kind: &str, exit: i32, cause: &str) {
        for command in ["doctor", "worker ls"] {
            let said = self.t.run(command);
            assert_eq!(said.code, Some(exit), "{kind}, {command}: {said:#?}");
            assert!(said.err.contains(cause) || said.out.contains(cause), "{kind}, {command}: {said:#?}");
        }
    }

    /// Waits until all go on, ends them, and looks into their logs.
    fn goes_on(mut self, causes: Option<[&str; 3]>) {
        self.is_well();
        for id in [A, B] {
            self.t.wait_for(id, "done");
        }
        signal(self.worker.child.as_ref().unwrap(), Signal::TERM);
        signal(self.forwarder.child.as_ref().unwrap(), Signal::TERM);
        let worker = said(self.worker.child.take().unwrap());
        let forwarder = said(self.forwarder.child.take().unwrap());
        let server = self.server.stop();
        for (said, cause) in [&worker, &forwarder, &server].into_iter().zip(causes.into_iter().flatten()) {
            assert!(said.err.contains(cause), "no {cause:?} in {said:#?}");
        }
    }
}

#[test]
fn a_store_that_hangs_is_said_and_no_restart_asked_for() {
    let (store, scene) = Scene::on_redis();
    scene.push();
    store.freeze();
    scene.looks("hang", false);
    scene.asks("hang", 5, "could not connect to the server");
    store.thaw();
    let waits = "the store has not answered for 4s";
    scene.goes_on(Some([waits, waits, "not ready: the store does not answer"]));
}

#[test]
fn a_store_that_is_gone_is_said_and_no_restart_asked_for() {
    let (mut store, scene) = Scene::on_redis();
    scene.push();
    // What it has must be there again.
    assert_eq!(store.say(&["SAVE"]), "OK");
    store.kill();
    scene.looks("refusal", false);
    scene.asks("refusal", 5, "could not connect to the server");
    store.restart();
    let gone = "could not connect to the server";
    scene.goes_on(Some([gone, gone, "not ready: "]));
}

#[test]
fn a_store_that_forbids_everything_is_said_and_no_restart_asked_for() {
    let (mut store, scene) = Scene::on_redis();
    scene.push();
    assert_eq!(store.say(&["ACL", "SETUSER", acl::USER, "-@all"]), "OK");
    scene.looks("denied", false);
    scene.asks("denied", 2, "NOPERM");
    store.admit(&["always"]);
    scene.goes_on(Some(["NOPERM", "NOPERM", "not ready: the server refused"]));
}

#[test]
fn a_file_that_is_locked_is_said_and_no_restart_asked_for() {
    let scene = Scene::of(Cli::new());
    scene.push();
    let stranger = rusqlite::Connection::open(scene.t.path("punctual.db")).unwrap();
    stranger.execute_batch("BEGIN IMMEDIATE").unwrap();
    scene.looks("locked", false);
    stranger.execute_batch("ROLLBACK").unwrap();
    let waits = "the store has not answered for 4s";
    scene.goes_on(Some([waits, waits, "not ready: the store does not answer"]));
}

/// Each answer takes up to three seconds: nobody asks for a restart, and jobs run.
#[test]
fn a_store_that_is_slow_is_used_and_no_restart_asked_for() {
    let (store, scene) = Scene::on_redis();
    scene.push();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                store.freeze();
                std::thread::sleep(SLOW);
                store.thaw();
                std::thread::sleep(ANSWERING);
            }
        });
        scene.looks("slow", true);
        drop(over);
    });
    scene.goes_on(None);
}

/// For so long the store answers nothing, and then everything for so long.
const SLOW: Duration = Duration::from_secs(3);
const ANSWERING: Duration = Duration::from_millis(500);

/// Ends what goes on beside a test, also if that fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
