//! `--health-file` and `--health-addr`: what `work` and `forward` report of themselves, in the same words.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Child,
};

use rustix::process::Signal;

use crate::{
    exec::{Worker, signal},
    fixture::{A, Cli, said, wait},
    listen::get,
};

/// A process that reports its health, and ends with its test.
pub(crate) struct Reporter {
    pub(crate) child: Option<Child>,
    addr: SocketAddr,
}

/// A port that is free now; nobody else in this test asks for one.
pub(crate) fn free_addr() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Reporter {
    pub(crate) fn start(t: &Cli, args: &[&str]) -> Self {
        let addr = free_addr();
        let health =
            ["--health-file".to_owned(), "health".to_owned(), "--health-addr".to_owned(), addr.to_string()];
        let args = args.iter().map(|arg| (*arg).to_owned()).chain(health);
        Self { child: Some(t.command(args).spawn().unwrap()), addr }
    }

    /// The head and the line of an answer.
    pub(crate) fn asked(&self) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(self.addr).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, line) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), line.to_owned()))
    }

    /// Waits until it answers a line that begins so, with 200.
    #[track_caller]
    pub(crate) fn answers(&self, words: &str) -> String {
        let answer = || self.asked().filter(|(_, line)| line.starts_with(words));
        let (head, line) = wait(answer, || format!("it never answered {words:?}, but {:?}", self.asked()));
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}\n{line}");
        assert!(line.contains(", last iteration ") && line.ends_with(" ms ago\n"), "{line}");
        line
    }

    fn signal(&self) {
        signal(self.child.as_ref().unwrap(), Signal::TERM);
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A receiver that takes connections and never answers.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}/", listener.local_addr().unwrap());
    (listener, to)
}

#[test]
fn work_and_forward_report_that_they_are_well_and_that_they_are_stopping() {
    let (_receiver, to) = silent();
    for args in [
        &["work", "--exec", "exec sleep 600", "--kill-after", "10ms"][..],
        &["forward", "--to", &to, "--allow-private"],
    ] {
        let t = Cli::new();
        let mut reporter = Reporter::start(&t, args);
        reporter.answers("ok, ");
        assert!(t.wait_for_file("health").starts_with("ok, last iteration "));
        t.ok(&format!("push k --id {A}"));
        t.wait_for(A, "running");
        reporter.answers("ok, ");
        // What runs may end within the grace.
        reporter.signal();
        reporter.answers("stopping, ");
        reporter.signal();
        let said = said(reporter.child.take().unwrap());
        assert_eq!(said.code, Some(0), "{args:?}: {said:#?}");
        assert!(reporter.asked().is_none(), "nobody answers for it any more");
    }
}

#[test]
fn a_forwarder_reports_what_its_jobs_wait_for() {
    let t = Cli::new();
    let routes = "[[forward]]\nfrom = \"a\"\nto = \"redis+unix:///nowhere/socket?stream=s\"\n\
                  [[forward]]\nfrom = \"b\"\nto = \"redis+unix:///nowhere/socket?stream=s\"\n";
    fs::write(t.path("punctual.toml"), routes).unwrap();
    let reporter = Reporter::start(&t, &["forward"]);
    // Both are served by one report; without jobs nothing waits.
    reporter.answers("ok, ");
    t.ok(&format!("push k -q b --id {A}"));
    let line = reporter.answers("held up: queue b: ");
    assert!(line.contains("No such file or directory"), "{line}");
    t.ok(&format!("cancel {A}"));
    reporter.answers("ok, ");
}

/// Another program holds the file locked: each process that waits for it says so soon, in its log and to its probes, and none asks to
/// be restarted.
#[test]
fn who_waits_for_a_locked_file_says_so() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A} --in 3s"));
    let mut reporter = Reporter::start(&t, &["work", "--exec", "true"]);
    reporter.answers("ok, ");
    let addr = free_addr().to_string();
    let server = Worker(Some(t.command(["serve", "--listen", &addr]).spawn().unwrap()));
    wait(|| get(&addr, "/readyz").filter(|line| line.starts_with("ok, ")), || "it is never ready".to_owned());
    let locked = rusqlite::Connection::open(t.path("punctual.db")).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waits = reporter.answers("held up: the store has not answered for ");
    wait(|| get(&addr, "/readyz").is_none().then_some(()), || waits.clone());
    assert!(get(&addr, "/healthz").unwrap().starts_with("ok, "));
    locked.execute_batch("ROLLBACK").unwrap();
    reporter.answers("ok, ");
    wait(|| get(&addr, "/readyz").filter(|line| line.starts_with("ok, ")), || "it is never ready".to_owned());
    t.wait_for(A, "done");
    reporter.signal();
    let (worker, server) = (said(reporter.child.take().unwrap()), server.stop());
    assert!(worker.err.contains("the store has not answered for 4s"), "{worker:#?}");
    assert!(server.err.contains("not ready: the store does not answer"), "{server:#?}");
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let (t, taken) = (Cli::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let addr = taken.local_addr().unwrap();
    for line in ["work --exec true", "forward --to redis://localhost?stream=s"] {
        let refused = t.run(&format!("{line} --health-addr {addr}"));
        refused.fails(5, "store_unavailable", &format!("could not listen on {addr} for health"));
    }
    let mut command = t.command(["work", "--exec", "true"]);
    let said = said(command.env("PUNCTUAL_HEALTH_ADDR", addr.to_string()).spawn().unwrap());
    said.fails(5, "store_unavailable", &format!("could not listen on {addr} for health"));
}
