//! `--listen`: metrics and health of `work` and `forward` over HTTP.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use crate::{
    exec::signal,
    fixture::{Cli, said, wait},
};

/// A process that listens, and ends with its test.
struct Listener {
    child: Option<Child>,
    addr: SocketAddr,
}

impl Listener {
    fn start(t: &Cli, line: &str) -> Self {
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let args = line.split(' ').map(str::to_owned).chain(["--listen".to_owned(), addr.to_string()]);
        Self { child: Some(t.command(args).spawn().unwrap()), addr }
    }

    /// The body of an answer with status 200.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.addr).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.strip_prefix("HTTP/1.1 200 OK\r\n")?.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }

    /// Waits until a line of the metrics begins so, and returns its number.
    #[track_caller]
    fn counts(&self, begin: &str, n: &str) -> String {
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

/// What a worker serves after one job.
#[track_caller]
fn metrics_of_a_job() -> String {
    let t = Cli::new();
    t.ok("push k -q mail");
    let listener = Listener::start(&t, "work -q mail --exec true");
    listener.counts(r#"punctual_jobs_settled_total{queue="mail",kind="k",verdict="ack",state="done"}"#, "1")
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

/// The names of the page and of the alert rules, against what a worker serves.
#[test]
fn every_name_of_the_page_and_of_the_rules_is_served() {
    let text = metrics_of_a_job();
    let operating = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating");
    let served = |name: &str| {
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let of = |family: &str| {
            let suffixes: &[&str] =
                if family.ends_with("_seconds") { &["", "_bucket", "_count", "_sum"] } else { &[""] };
            suffixes.iter().any(|suffix| format!("{family}{suffix}") == name)
        };
        families.into_iter().any(of)
    };
    for file in ["metrics.md", "alerts.yml"] {
        let page = fs::read_to_string(format!("{operating}/{file}")).unwrap();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = page.split(|c| !is_name(c)).filter(|word| word.starts_with("punctual_"));
        let names: std::collections::BTreeSet<&str> = words.collect();
        assert!(2 < names.len(), "{file}: {names:?}");
        for name in names {
            assert!(served(name), "{file} names {name}, which is not in {text}");
        }
    }
    // And the other way round: each family is on the page.
    let page = fs::read_to_string(format!("{operating}/metrics.md")).unwrap();
    for family in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(page.contains(family), "metrics.md does not name {family}");
    }
}

/// The commands that the alert rules suggest, with labels that need quotes.
#[test]
fn every_hint_of_the_rules_is_a_command_that_runs() {
    let t = Cli::new();
    t.ok("push k");
    let rules =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/alerts.yml")).unwrap();
    let hints = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("hint: \"punctual ls '")?.strip_suffix("'\""));
    let mut count = 0;
    for hint in hints {
        let labels = ["queue", "kind"].map(|label| format!("{{{{ $labels.{label} }}}}"));
        let filter = labels.iter().fold(hint.replace("\\\"", "\""), |text, label| text.replace(label, "a b"));
        let said = said(t.command(["ls".to_owned(), filter.clone()]).spawn().unwrap());
        assert_eq!(said.code, Some(0), "{filter}: {said:#?}");
        count += 1;
    }
    assert_eq!(count, 3, "hints with a filter");
}

/// Prometheus's own checks of the text and of the rules.
#[test]
fn promtool_finds_nothing_wrong() {
    let text = metrics_of_a_job();
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/alerts.yml");
    let promtool = |args: &[&str], input: &str| {
        let mut command = Command::new("promtool");
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("promtool is installed by scripts/test (Debian's prometheus)");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "promtool {args:?}: {said}\n{input}");
    };
    promtool(&["check", "rules", rules], "");
    promtool(&["check", "metrics"], &text);
}
