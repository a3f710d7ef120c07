//! Processes that hold jobs or a lock, and whose stderr nobody reads: nothing that they decide waits for a reader.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, PipeReader, Read as _, Write as _, pipe},
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    process::Child,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    exec::{Worker, signal},
    fixture::{Cli, wait},
    serve::Served,
};

/// Starts a command whose stderr is a pipe that is full already.
fn start(t: &Cli, words: &[&str]) -> (Child, PipeReader) {
    let (reader, mut writer) = pipe().unwrap();
    // Only this description does not block.
    let mut filler = OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))
        .unwrap();
    // Smaller and smaller parts, until not one byte has room.
    for size in [4096, 1] {
        loop {
            match filler.write(&vec![b'.'; size]) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    writer.flush().unwrap();
    (t.command(words).stderr(writer).spawn().unwrap(), reader)
}

/// Waits for the end of a process that nobody reads.
fn code(child: &mut Child) -> Option<i32> {
    let child = std::cell::RefCell::new(child);
    wait(|| child.borrow_mut().try_wait().unwrap(), || "the process does not end".to_owned()).code()
}

/// With and without `--keep`: a job that prints without an end has its timeout, its neighbours go on, and SIGTERM ends the worker.
#[test]
fn a_worker_that_nobody_reads_decides_in_time() {
    let child = "from punctual_worker import work\n\
                 def handle(job):\n\
                 \x20   while job.kind == 'chatty': print('x' * 200)\n\
                 work(handle)\n";
    let clients =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python").canonicalize().unwrap();
    let kept = format!("PYTHONPATH='{}' exec python3 worker.py", clients.display());
    for (exec, more) in [
        ("if [ $PUNCTUAL_KIND = chatty ]; then exec yes >&2; fi", "--slots 2"),
        (kept.as_str(), "--keep 2 --slots 2"),
    ] {
        let t = Cli::new();
        std::fs::write(t.path("worker.py"), child).unwrap();
        let push = |kind: &str, timeout: &str| {
            t.ok(&format!("push {kind} --timeout {timeout} --max-attempts 1 -o ids")).trim().to_owned()
        };
        let chatty = push("chatty", "500ms");
        let words = ["-v", "work", "--exec", exec, "--grace", "0s", "--kill-after", "200ms"];
        let words: Vec<&str> = words.into_iter().chain(more.split(' ')).collect();
        let (child, _reader) = start(&t, &words);
        let mut worker = Worker(Some(child));
        let job = t.wait_for_end(&chatty);
        assert_eq!(job["last_error"], "timeout after 500ms", "{exec}: {job}");
        for id in [0; 20].map(|_| push("quiet", "40s")) {
            assert_eq!(t.wait_for_end(&id)["status"], "done", "{exec}");
        }
        worker.signal(Signal::TERM);
        assert_eq!(code(worker.0.as_mut().unwrap()), Some(0), "{exec}");
    }
}

/// What does not fit is dropped, and a line says how much: with what was printed, it makes up all.
#[test]
fn output_that_is_dropped_is_counted() {
    const BYTES: usize = 4 * 1024 * 1024;
    let t = Cli::new();
    let id = t.ok("push k --timeout 40s -o ids").trim().to_owned();
    let command = format!("head -c {BYTES} /dev/zero | tr '\\0' x >&2");
    let (child, mut reader) = start(&t, &["--log-format", "json", "work", "--exec", &command]);
    let worker = Worker(Some(child));
    assert_eq!(t.wait_for_end(&id)["status"], "done");
    let hearer = std::thread::spawn(move || {
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        all
    });
    worker.signal(Signal::TERM);
    worker.said();
    let all = hearer.join().unwrap();
    let printed = all.matches('x').count();
    let gaps: Vec<Value> = all
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["message"].as_str().is_some_and(|text| text.contains("output was dropped")))
        .collect();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0]["level"], json!("WARN"));
    assert!(0 < printed && printed < BYTES, "{printed}");
    // No other line of the log has this letter.
    assert_eq!(printed as u64 + gaps[0]["bytes"].as_u64().unwrap(), BYTES as u64, "{gaps:?}");
}

/// A report that nobody reads holds up no end.
#[test]
fn a_report_that_nobody_reads_ends_the_worker() {
    let t = Cli::new();
    let id = t.ok("push k --timeout 500ms --max-attempts 1 -o ids").trim().to_owned();
    // The command fills stdout, which it has from the worker.
    let words = ["work", "--exec", "exec yes", "--grace", "0s", "--kill-after", "200ms", "--json"];
    let mut worker = Worker(Some(t.command(words).spawn().unwrap()));
    t.wait_for_end(&id);
    worker.signal(Signal::TERM);
    assert_eq!(code(worker.0.as_mut().unwrap()), Some(1));
}

/// The store is away, the log says so, nobody reads it: the command must be gone when the lock is free for others.
#[test]
fn a_lock_that_is_lost_ends_its_command_although_nobody_reads_of_it() {
    let served = Served::start(Cli::new(), "");
    let t = Cli::with_store(&served.url);
    let words =
        ["lock", "run", "nightly", "--lease", "2s", "--", "sh", "-c", "echo $$ > pid; exec sleep 600"];
    let (mut child, _reader) = start(&t, &words);
    t.wait_for_file("pid");
    drop(served);
    assert_eq!(code(&mut child), Some(124));
    assert!(crate::exec::is_over(crate::exec::process(&t.wait_for_file("pid"))));
}

/// A server begins, answers and ends.
#[test]
fn a_server_that_nobody_reads_answers() {
    let t = Cli::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (child, _reader) = start(&t, &["-v", "serve", "--listen", &format!("127.0.0.1:{port}")]);
    let mut server = Worker(Some(child));
    let front = Cli::with_store(&format!("http://127.0.0.1:{port}"));
    wait(|| (front.run("push k").code == Some(0)).then_some(()), || "the server does not answer".to_owned());
    signal(server.0.as_ref().unwrap(), Signal::TERM);
    assert_eq!(code(server.0.as_mut().unwrap()), Some(0));
}
