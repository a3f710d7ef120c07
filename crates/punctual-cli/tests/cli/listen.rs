//! `--listen`: metrics and health of `work` and `forward` over HTTP.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Child,
};

use crate::{
    exec::signal,
    fixture::{Cli, said, wait},
};

/// The body of an answer with status 200.
pub(crate) fn get(addr: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(addr).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.strip_prefix("HTTP/1.1 200 OK\r\n")?.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

/// A process that listens, and ends with its test.
pub(crate) struct Listener {
    child: Option<Child>,
    addr: SocketAddr,
}

impl Listener {
    pub(crate) fn start(t: &Cli, line: &str) -> Self {
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let args = line.split(' ').map(str::to_owned).chain(["--listen".to_owned(), addr.to_string()]);
        Self { child: Some(t.command(args).spawn().unwrap()), addr }
    }

    /// Its address and port.
    pub(crate) fn addr(&self) -> String {
        self.addr.to_string()
    }

    fn get(&self, path: &str) -> Option<String> {
        get(&self.addr.to_string(), path)
    }

    /// Waits until a line of the metrics begins so, and returns its number.
    #[track_caller]
    pub(crate) fn counts(&self, begin: &str, n: &str) -> String {
        let line = format!("{begin} {n}");
        let has = || self.get("/metrics").filter(|text| text.lines().any(|own| own == line));
        wait(has, || format!("{line:?} is not in {:?}", self.get("/metrics")))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn work_counts_its_jobs_and_says_where() {
    let t = Cli::new();
    for _ in 0..3 {
        t.ok("push k -q mail");
    }
    let mut listener = Listener::start(&t, "work -q mail --exec true");
    let text = listener
        .counts(r#"punctual_jobs_settled_total{queue="mail",kind="k",verdict="ack",state="done"}"#, "3");
    assert!(text.contains("\npunctual_job_lateness_seconds_count{queue=\"mail\"} 3\n"), "{text}");
    assert!(listener.get("/healthz").unwrap().starts_with("ok, "));
    assert!(listener.get("/readyz").unwrap().starts_with("ok, "));
    // What alerts ask for begins at 0.
    assert!(text.contains("\npunctual_leases_reclaimed_total{queue=\"mail\",state=\"dead\"} 0\n"), "{text}");
    signal(listener.child.as_ref().unwrap(), rustix::process::Signal::TERM);
    let said = said(listener.child.take().unwrap());
    assert_eq!(said.code, Some(0), "{said:#?}");
    assert!(said.err.contains(&format!("metrics  http://{}/metrics", listener.addr)), "{said:#?}");
}

#[test]
fn a_forwarder_counts_its_jobs_too() {
    let t = Cli::new();
    let listener = Listener::start(&t, "forward --to redis+unix:///nowhere/socket?stream=s");
    // It listens before its first reserve.
    let reserve = "punctual_store_operation_seconds_count{operation=\"reserve\"}";
    let has = || listener.get("/metrics").filter(|text| text.contains(reserve));
    wait(has, || format!("{reserve:?} is not in {:?}", listener.get("/metrics")));
    assert!(listener.get("/healthz").is_some());
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let (t, taken) = (Cli::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let addr = taken.local_addr().unwrap();
    let refused = t.run(&format!("work --exec true --listen {addr}"));
    refused.fails(5, "store_unavailable", &format!("could not listen on {addr}"));
}
