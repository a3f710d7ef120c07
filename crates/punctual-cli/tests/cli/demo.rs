//! `demo`: what it leaves behind, and what it shows to others.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStderr, Command},
};

use rustix::process::{Pid, Signal};

use crate::{
    exec::{is_over, process, signal},
    fixture::{Cli, wait},
    redis::server::Server,
};

/// A demo that has enqueued its jobs, and what it said until then.
fn start(mut command: Command) -> (Child, BufReader<ChildStderr>, String) {
    let mut child = command.spawn().unwrap();
    let (mut talk, mut said) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !said.contains("enqueued 2000 jobs") {
        assert!(0 < talk.read_line(&mut said).unwrap(), "the demo ended: {said}");
    }
    (child, talk, said)
}

/// The children of a process.
fn children(parent: &Child) -> Vec<Pid> {
    let id = parent.id();
    let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let lists =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().map(process).collect::<Vec<_>>()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_demo_that_is_interrupted_shows_no_password_and_leaves_nothing_behind() {
    let (t, server) = (Cli::new(), Server::listening(&["--requirepass", "open-sesame"]));
    let store = format!("redis://:open-sesame@127.0.0.1:{}", server.port());
    // What the command line names is used, also where the environment says the same.
    let mut command = t.command(["demo", "--store", &store]);
    command.env("PUNCTUAL_STORE", &store);
    let (child, mut talk, mut said) = start(command);
    let workers = children(&child);
    for worker in &workers {
        let line = fs::read_to_string(format!("/proc/{worker}/cmdline")).unwrap();
        assert!(!line.contains("sesame"), "everybody can read {line:?}");
    }
    signal(&child, Signal::INT);
    talk.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130), "{said}");
    assert!(said.starts_with("store    redis://") && !said.contains("sesame"), "{said}");
    assert_eq!(workers.len(), 2);
    assert!(workers.iter().all(|worker| is_over(*worker)), "workers live on");
    let left = t.json(&format!("stats --store {store}"));
    for state in ["waiting", "running", "done", "dead", "cancelled"] {
        assert_eq!(left[state], 0, "{left}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_workers_of_a_demo_end_with_it() {
    let t = Cli::new();
    let mut command = t.command(["demo"]);
    // Nobody removes the folder of a demo that was killed.
    command.env("TMPDIR", t.path(""));
    let (child, _talk, _) = start(command);
    let workers = children(&child);
    assert_eq!(workers.len(), 2);
    signal(&child, Signal::KILL);
    child.wait_with_output().unwrap();
    for worker in workers {
        wait(|| is_over(worker).then_some(()), || format!("worker {worker} lives on without its demo"));
    }
}

/// The ledger comes as without a dashboard, which stays until it is asked to end.
#[cfg(all(target_os = "linux", feature = "serve"))]
#[test]
fn a_demo_with_a_dashboard_stays_until_it_is_asked_to_end() {
    let t = Cli::new();
    let mut command = t.command(["demo", "--serve"]);
    command.env("TMPDIR", t.path(""));
    let (child, mut talk, mut said) = start(command);
    let (_, addr) = said.split_once("dashboard http://").unwrap();
    let addr = addr.lines().next().unwrap().to_owned();
    let overview = || {
        let mut stream = TcpStream::connect(&addr).unwrap();
        write!(stream, "GET / HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    };
    assert!(overview().contains("-reports"), "the overview names the queues");
    while !said.contains("the dashboard stays") {
        assert!(0 < talk.read_line(&mut said).unwrap(), "the demo ended: {said}");
    }
    assert!(overview().starts_with("HTTP/1.1 200"), "the dashboard is still there");
    signal(&child, Signal::INT);
    talk.read_to_string(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("ok: no job lost"), "{output:?}");
    assert!(TcpStream::connect(&addr).is_err(), "it listens no more");
}
