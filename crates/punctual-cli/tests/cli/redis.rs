//! What the commands do on a server of Redis, and how they tell that something is wrong with it.

#[path = "../../../punctual/tests/support/redis.rs"]
mod server;

use std::{
    io::{BufRead as _, BufReader},
    process::Command,
};

use self::server::Server;
use crate::fixture::{Cli, said};

/// A connection beside the commands.
fn connect(server: &Server) -> redis::Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// How many keys there are.
fn keys(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut connect(server)).unwrap()
}

#[test]
fn a_bench_measures_the_server_too_and_leaves_nothing_behind() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let sizes = "--jobs 2000 --waiting 500 --seconds 1";
    let figures = t.json(&format!("bench {sizes} --store {}", server.url()));
    assert_eq!(keys(&server), 0);
    assert_eq!((&figures["fsync_ms"], &figures["waiting_jobs"]), (&serde_json::Value::Null, &500.into()));
    for name in [
        "enqueue_bulk_per_s",
        "enqueue_single_per_s",
        "enqueue_single64_per_s",
        "lives_per_s",
        "lives_random_due_per_s",
        "lives_default_retention_per_s",
        "drain_per_s",
        "drain_beside_waiting_per_s",
        "bytes_per_waiting_job",
        "server_us_per_life",
        "server_cpu_us_per_life",
        "server_us_per_life_default_retention",
        "server_us_per_life_single",
        "server_cpu_us_per_life_single",
    ] {
        assert!(figures[name].as_f64().is_some_and(|n| 0.0 < n), "{name}: {figures}");
    }
    for name in ["insert_per_s", "lives_per_s", "server_us_per_life", "server_us_per_life_single"] {
        assert!(figures["reference"][name].as_f64().is_some_and(|n| 0.0 < n), "{name}: {figures}");
    }
    // A bell rung while the worker settled down may be one of them.
    assert!(figures["idle_ops_per_s"].as_f64().is_some_and(|n| n < 5.0), "{figures}");
    // Two calls a life where each is of one job; far fewer where they are many.
    let calls = |name: &str| figures[name].as_f64().unwrap();
    assert!((2.0..2.5).contains(&calls("server_calls_per_life_single")), "{figures}");
    assert!(calls("server_calls_per_life") < 3.0 / 50.0, "{figures}");
}

#[test]
fn a_bench_that_is_interrupted_leaves_nothing_behind() {
    let (t, server) = (Cli::new(), Server::start(&[]));
    let url = format!("{}:in", server.url());
    let mut child = t.command(["bench", "--waiting", "10000", "--store", &url]).spawn().unwrap();
    let (mut told, mut line) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !line.contains("lives") {
        line.clear();
        assert_ne!(told.read_line(&mut line).unwrap(), 0, "it ended by itself");
    }
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connect(&server)).unwrap();
    let prefix = url.split_once("prefix=").unwrap().1;
    assert!(names.iter().all(|name| name.starts_with(&format!("{prefix}:bench-"))), "{names:?}");
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    std::thread::spawn(move || std::io::copy(&mut told, &mut std::io::sink()));
    assert_eq!(said(child).code, Some(130));
    assert_eq!(keys(&server), 0);
}
