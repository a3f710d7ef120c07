//! A worker ends by the signals of its process. In a file of its own, because signals are the whole process's.

#![cfg(all(unix, feature = "derive"))]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use std::{future::pending, process::Command, time::Duration};

use punctual::{Client, Ctx, Job, State, Worker, worker::Stop};
use tokio::sync::mpsc::unbounded_channel;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "test.work")]
struct Work {}

fn signal(name: &str) {
    let me = std::process::id().to_string();
    assert!(Command::new("kill").args(["-s", name, &me]).status().is_ok_and(|status| status.success()));
}

/// The first asks handlers to stop, the second doesn't wait for them.
#[tokio::test]
async fn the_first_signal_is_graceful_and_the_second_means_now() {
    for (first, second) in [("TERM", "INT"), ("TERM", "TERM"), ("INT", "INT")] {
        ends_by_two_signals(first, second).await;
    }
}

async fn ends_by_two_signals(first: &str, second: &str) {
    let client = Client::connect("memory:").await.unwrap();
    let id = client.enqueue(Work {}).await.unwrap().id().unwrap();
    let (tell, mut told) = unbounded_channel();
    let worker =
        Worker::new(&client).shutdown_grace(Duration::from_hours(1)).handle(move |_: Work, ctx: Ctx| {
            let tell = tell.clone();
            async move {
                let _ = tell.send(None);
                ctx.cancel_token().cancelled().await;
                let _ = tell.send(ctx.stop_reason());
                pending::<()>().await;
            }
        });
    let working = tokio::spawn(worker.run());
    assert_eq!(told.recv().await.unwrap(), None);
    signal(first);
    assert_eq!(told.recv().await.unwrap(), Some(Stop::Shutdown));
    signal(second);
    assert_eq!(working.await.unwrap().unwrap().released, 1, "{first}, {second}");
    let job = client.get(id).await.unwrap().unwrap();
    assert_eq!((job.state, job.attempt), (State::Waiting, 1));
}

/// Starts this test binary again, to run `test` alone, in a process that signals can end.
#[cfg(target_os = "linux")]
fn child(test: &str) -> (std::process::Child, impl Iterator<Item = String>) {
    use std::{
        io::{BufRead, BufReader},
        process::Stdio,
    };
    // Whoever runs the tests in the background of a shell has them ignore this signal.
    let mut program = Command::new("env");
    program.arg("--default-signal=INT").arg(std::env::current_exe().unwrap());
    program.args(["--ignored", "--exact", test, "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines)
}

#[cfg(target_os = "linux")]
fn interrupt(child: &std::process::Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &id]).status().is_ok_and(|status| status.success()));
}

/// How often a process is looked at that should have ended, and how long in all.
#[cfg(target_os = "linux")]
const LOOK: Duration = Duration::from_millis(20);
#[cfg(target_os = "linux")]
const LOOKS_MAX: u32 = 500;

/// How a process ended; `None`: it goes on.
#[cfg(target_os = "linux")]
fn end(child: &mut std::process::Child) -> Option<i32> {
    for _ in 0..LOOKS_MAX {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(LOOK);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Works until a signal, says so, and stays until its input ends.
#[tokio::test]
#[ignore = "another test runs it as a process of its own"]
async fn works_and_lingers() {
    let client = Client::connect("memory:").await.unwrap();
    client.enqueue(Work {}).await.unwrap();
    let worker = Worker::new(&client).handle(async |_: Work, _: Ctx| println!("\nworking"));
    worker.run().await.unwrap();
    println!("\nended");
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// The same, where the program listens for itself, and did so first.
#[tokio::test]
#[cfg(unix)]
#[ignore = "another test runs it as a process of its own"]
async fn works_and_listens() {
    let kind = tokio::signal::unix::SignalKind::interrupt();
    let mut own = tokio::signal::unix::signal(kind).unwrap();
    let client = Client::connect("memory:").await.unwrap();
    client.enqueue(Work {}).await.unwrap();
    let worker = Worker::new(&client).handle(async |_: Work, _: Ctx| println!("\nworking"));
    worker.run().await.unwrap();
    own.recv().await;
    println!("\nended");
    own.recv().await;
    println!("\nheard");
}

/// Works until a signal.
#[tokio::test]
#[ignore = "another test runs it as a process of its own"]
async fn works() {
    let client = Client::connect("memory:").await.unwrap();
    Worker::new(&client).handle(async |_: Work, _: Ctx| ()).run().await.unwrap();
}

/// Waits until a process catches a signal, as Linux tells it.
#[cfg(target_os = "linux")]
fn until_caught(child: &std::process::Child, signal: rustix::process::Signal) {
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        if u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1 {
            return;
        }
    }
}

/// A process that is told to end as soon as it listens for it: its worker drains, and it ends with success.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_during_the_start_of_a_worker_drains_it() {
    use rustix::process::{Pid, Signal, kill_process};

    for _ in 0..30 {
        let (mut child, lines) = child("works");
        until_caught(&child, Signal::TERM);
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(end(&mut child), Some(0), "{:?}", lines.collect::<Vec<_>>());
    }
}

/// A program that still cleans up can be ended by Ctrl-C.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_ends_the_process_again_when_its_worker_has_ended() {
    let (mut child, mut lines) = child("works_and_lingers");
    assert!(lines.any(|line| line == "working"));
    interrupt(&child);
    assert!(lines.any(|line| line == "ended"));
    interrupt(&child);
    assert_eq!(end(&mut child), Some(130));
}

#[test]
#[cfg(target_os = "linux")]
fn a_signal_that_the_program_caught_before_its_worker_stays_its_own() {
    let (mut child, mut lines) = child("works_and_listens");
    assert!(lines.any(|line| line == "working"));
    interrupt(&child);
    assert!(lines.any(|line| line == "ended"));
    interrupt(&child);
    assert!(lines.any(|line| line == "heard"));
    assert_eq!(end(&mut child), Some(0));
}
