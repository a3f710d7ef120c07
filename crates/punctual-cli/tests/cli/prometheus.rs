//! A real Prometheus scrapes a worker and a server: what it has afterwards equals the history.

use std::{
    env, fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    fixture::{Cli, wait},
    listen::{Listener, get},
    serve::Served,
};

/// How long it scrapes, unless `PUNCTUAL_SCRAPE_SECONDS` says so: a few times.
const SECONDS: u32 = 5;
/// How many jobs become due in each second of that.
const JOBS_A_SECOND: u32 = 10;

/// A Prometheus with a folder of its own. It ends with its test.
struct Prometheus {
    child: Child,
    addr: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// `None` where there is none, which fails in CI.
    fn start(t: &Cli, targets: &[&str]) -> Option<Self> {
        let version = Command::new("prometheus").arg("--version").output();
        if version.is_err() {
            eprintln!("MISSING: there is no prometheus, so no real one scraped");
            assert!(env::var_os("CI").is_none(), "CI needs prometheus");
            return None;
        }
        let (config, data) = (t.path("prometheus.yml"), t.path("data"));
        let targets = serde_json::to_string(targets).unwrap();
        let scrape = "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: punctual\n  static_configs:\n  - targets: ";
        fs::write(&config, format!("{scrape}{targets}\n")).unwrap();
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={addr}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { child, addr })
    }

    /// The value of a query with one answer; `None` before it has one.
    fn ask(&self, query: &str) -> Option<f64> {
        let query = query.bytes().fold(String::new(), |text, byte| format!("{text}%{byte:02x}"));
        let text = get(&self.addr, &format!("/api/v1/query?query={query}"))?;
        // The body may come in chunks; the document has no line ends of its own.
        let begin = text.find('{')?;
        let json: Value = serde_json::from_str(text[begin..].split("\r\n").next()?).ok()?;
        json["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }

    #[track_caller]
    fn says(&self, query: &str, n: f64) {
        let is = || self.ask(query).filter(|is| (is - n).abs() < 1e-9);
        wait(is, || format!("{query} is {:?} and not {n}", self.ask(query)));
    }
}

#[test]
fn what_it_scrapes_equals_the_history() {
    let seconds = env::var("PUNCTUAL_SCRAPE_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let t = Cli::new();
    let n = JOBS_A_SECOND * seconds;
    let ledger = t.path("ledger");
    let run = t.path("run");
    fs::write(&run, "#!/bin/sh\necho $(($(date +%s%3N) - PUNCTUAL_RUN_AT_MS)) >>ledger\n").unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
    let worker = Listener::start(&t, "work -q mail --exec ./run");
    let jobs = (0..n).map(|i| {
        format!("{{\"kind\":\"k\",\"queue\":\"mail\",\"delay_ms\":{}}}\n", i * 1000 / JOBS_A_SECOND)
    });
    let server = Served::start(t, "");
    let addr = server.url.strip_prefix("http://").unwrap().to_owned();
    let Some(prometheus) = Prometheus::start(server.store(), &[&worker.addr(), &addr]) else { return };
    prometheus.says("count(up == 1)", 2.0);
    let begun = Instant::now();
    server.store().feed("push --batch -", jobs.collect::<String>()).ok();
    server.behind("push k -q other --in 1h");

    // It scrapes for as long as jobs become due.
    thread::sleep(Duration::from_secs(seconds.into()));

    // Each query waits until it is so.
    prometheus.says(
        "sum(punctual_jobs_settled_total{queue=\"mail\",verdict=\"ack\",state=\"done\"})",
        f64::from(n),
    );
    prometheus.says("sum(punctual_job_lateness_seconds_count{queue=\"mail\"})", f64::from(n));
    prometheus.says("sum(punctual_jobs_started_total)", f64::from(n));
    prometheus.says("punctual_store_jobs{state=\"done\"}", f64::from(n));
    prometheus.says("punctual_queue_jobs{queue=\"other\",state=\"waiting\"}", 1.0);
    prometheus.says("sum(punctual_queue_jobs{queue=\"mail\",state=\"waiting\"})", 0.0);
    let mut late: Vec<u32> =
        fs::read_to_string(ledger).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    late.sort_unstable();
    assert_eq!(u32::try_from(late.len()).unwrap(), n);
    // Each line is written after its start, so the start is not in a later bucket than the line.
    let p99 = late[late.len() * 99 / 100];
    let bound = prometheus.ask(&format!(
        "sum(punctual_job_lateness_seconds_bucket{{le=\"{}\"}})",
        bound_of(f64::from(p99) / 1000.0, &get(&worker.addr(), "/metrics").unwrap()),
    ));
    assert!(f64::from(n) * 0.99 <= bound.unwrap(), "{bound:?} of {n} within the bucket of {p99} ms");
    let quantile =
        prometheus.ask("histogram_quantile(0.99, sum by (le) (punctual_job_lateness_seconds_bucket))");
    println!(
        "{n} jobs in {:.0} s: p99 of the histogram {:.1} ms, of the ledger {p99} ms; none early, counters equal",
        begun.elapsed().as_secs_f64(),
        quantile.unwrap() * 1000.0
    );
}

/// The bound of the bucket that holds a lateness in seconds, as the metrics write it.
fn bound_of(late: f64, text: &str) -> String {
    let mut bounds = text.lines().filter_map(|line| {
        let (_, rest) = line.strip_prefix("punctual_job_lateness_seconds_bucket{")?.split_once("le=\"")?;
        Some(rest.split('"').next()?.to_owned())
    });
    bounds.find(|bound| bound.parse::<f64>().is_ok_and(|bound| late <= bound)).unwrap()
}
