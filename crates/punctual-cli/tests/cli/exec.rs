//! `work --exec`: the processes of a command, whatever ends it.

use std::{fs, process::Child};

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{A, B, Cli, Said, said, wait};

/// A worker that ends with its test.
pub(crate) struct Worker(pub(crate) Option<Child>);

impl Worker {
    pub(crate) fn start(t: &Cli, command: &str, more: &str) -> Self {
        let args = ["work", "--exec", command].into_iter().chain(more.split_whitespace());
        Self(Some(t.command(args).spawn().unwrap()))
    }

    pub(crate) fn signal(&self, with: Signal) {
        signal(self.0.as_ref().unwrap(), with);
    }

    /// Asks it to end, and hears what it says.
    pub(crate) fn stop(mut self) -> Said {
        self.signal(Signal::TERM);
        said(self.0.take().unwrap())
    }

    /// Hears what it says.
    pub(crate) fn said(mut self) -> Said {
        said(self.0.take().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Whether a process ended; it may still have to be waited for.
pub(crate) fn is_over(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything, stands the state: a zombie, or dead.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

pub(crate) fn process(pid: &str) -> Pid {
    Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
}

/// Notes what of earlier attempts still runs, then starts a child and a grandchild that ignore SIGTERM.
const STUBBORN: &str = r#"
    for pid in $(cat pids 2> /dev/null); do
        grep -q sleep "/proc/$pid/cmdline" 2> /dev/null && echo "$PUNCTUAL_ATTEMPT $pid" >> overlaps
    done
    trap '' TERM
    sh -c 'sh -c "echo \$\$ >> pids; exec sleep 600" & echo $$ >> pids; exec sleep 600' > /dev/null 2>&1 &
    until [ "$(wc -l < pids)" -ge "$((2 * PUNCTUAL_ATTEMPT))" ]; do sleep 0.01; done
    echo $PUNCTUAL_ATTEMPT >> attempts
    exec sleep 600 > /dev/null 2>&1"#;

fn overlaps(t: &Cli) -> String {
    fs::read_to_string(t.path("overlaps")).unwrap_or_default()
}

#[test]
fn attempts_of_one_key_never_overlap_whatever_ignores_sigterm() {
    let t = Cli::new();
    t.args(&[
        "push",
        "k",
        "--id",
        A,
        "--timeout",
        "1s",
        "--max-attempts",
        "3",
        "--backoff",
        "fixed 1s",
        "--concurrency-key",
        "account",
    ])
    .ok();
    let worker = Worker::start(&t, STUBBORN, "--kill-after 200ms --lease 1s");
    let job = t.wait_for(A, "dead");
    assert_eq!(overlaps(&t), "", "an attempt began while one before it still ran");
    assert_eq!(fs::read_to_string(t.path("attempts")).unwrap(), "1\n2\n3\n");
    let error = job["last_error"].as_str().unwrap();
    assert!(error.starts_with("timeout after"), "{error}");
    for pid in fs::read_to_string(t.path("pids")).unwrap().lines() {
        assert!(is_over(process(pid)), "{pid} lives on");
    }
    worker.stop().ok();
}

#[test]
fn a_worker_gives_its_jobs_back_when_their_commands_are_gone() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let first = Worker::start(&t, STUBBORN, "--kill-after 200ms --grace 100ms");
    t.wait_for_file("attempts");
    let second = Worker::start(
        &t,
        "cat pids > again; for p in $(cat pids); do grep -q sleep /proc/$p/cmdline && echo $p >> overlaps; done; exit 0",
        "",
    );
    first.signal(Signal::TERM);
    let said = first.said();
    assert!(said.err.contains("1 released"), "{said:#?}");
    let job = t.wait_for(A, "done");
    assert_eq!((&job["attempt"], overlaps(&t).as_str()), (&1.into(), ""));
    second.stop().ok();
}

#[test]
fn a_hangup_ends_a_worker_as_sigterm_does() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let worker = Worker::start(&t, "echo > started; until [ -e go ]; do sleep 0.01; done", "");
    t.wait_for_file("started");
    worker.signal(Signal::HUP);
    fs::write(t.path("go"), "").unwrap();
    let said = worker.said();
    assert_eq!(said.code, Some(0), "{said:#?}");
    assert!(said.err.starts_with("1 done · "), "{said:#?}");
}

#[test]
fn a_worker_that_is_killed_takes_its_commands_along() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let worker = Worker::start(&t, STUBBORN, "");
    t.wait_for_file("attempts");
    worker.signal(Signal::KILL);
    assert_eq!(worker.said().code, None);
    for pid in fs::read_to_string(t.path("pids")).unwrap().lines() {
        wait(|| is_over(process(pid)).then_some(()), || format!("{pid} lives on without its worker"));
    }
}

#[test]
fn a_command_never_reads_a_part_of_its_payload() {
    let t = Cli::new();
    let payload = format!("\"{}\"", "x".repeat(900_000));
    t.feed(&format!("push k - --id {A}"), &payload).ok();
    let command = "exec > /dev/null 2>&1; trap '' TERM; echo $$ > pid; until [ -e go ]; do sleep 0.01; done; wc -c > size.new; mv size.new size";
    let worker = Worker::start(&t, command, "");
    let pid = t.wait_for_file("pid");
    worker.signal(Signal::KILL);
    assert_eq!(worker.said().code, None);
    fs::write(t.path("go"), "").unwrap();
    wait(|| is_over(process(&pid)).then_some(()), || "the command lives on".into());
    let read = fs::read_to_string(t.path("size")).unwrap_or_default();
    assert!(["", &payload.len().to_string()].contains(&read.trim()), "it read {read} bytes");
    // Whole and seekable, where the worker lives.
    let again = Worker::start(&t, "wc -c > size.new; mv size.new size", "--lease 1s");
    t.ok(&format!("push k --id {B}"));
    t.wait_for(B, "done");
    again.stop().ok();
}

#[test]
fn a_result_is_read_to_its_end_whatever_keeps_the_pipe_open() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let command = "sleep 600 & echo $! > left; head -c 60000 /dev/zero | tr '\\0' x; exit 0";
    let worker = Worker::start(&t, command, "--result");
    let job = t.wait_for(A, "done");
    let length = job["result"].as_str().map(str::len);
    kill_process(process(&t.wait_for_file("left")), Signal::KILL).unwrap();
    assert_eq!(length, Some(60_000));
    worker.stop().ok();
}

#[test]
fn a_command_learns_all_of_its_job_but_not_the_password_of_the_store() {
    let t = Cli::new();
    let path = t.path("punctual.db");
    let store = format!("sqlite:{}", path.display());
    t.args(&[
        "push",
        "email.send",
        "plain",
        "--id",
        A,
        "--group",
        "acme",
        "--tag",
        "a",
        "--tag",
        "b c",
        "--header",
        "trace=1 2",
        "--content-type",
        "text/plain",
        "--max-attempts",
        "7",
    ])
    .ok();
    let command = "env | grep ^PUNCTUAL_ | sort > environment.new; mv environment.new environment";
    let worker = |more: &str| {
        let words = ["work", "--exec", command].into_iter().chain(more.split_whitespace());
        Worker(Some(t.command(words).env("PUNCTUAL_STORE", &store).spawn().unwrap()))
    };
    let first = worker("");
    t.wait_for(A, "done");
    first.stop().ok();
    let environment = fs::read_to_string(t.path("environment")).unwrap();
    assert!(!environment.contains("PUNCTUAL_STORE"), "{environment}");
    for line in [
        "PUNCTUAL_GROUP=acme",
        r#"PUNCTUAL_TAGS=["a","b c"]"#,
        r#"PUNCTUAL_HEADERS={"trace":"1 2"}"#,
        "PUNCTUAL_CONTENT_TYPE=text/plain",
        "PUNCTUAL_MAX_ATTEMPTS=7",
    ] {
        assert!(environment.lines().any(|l| l == line), "{line}: {environment}");
    }
    t.ok(&format!("push k --id {B}"));
    let second = worker("--pass-store");
    t.wait_for(B, "done");
    second.stop().ok();
    let environment = fs::read_to_string(t.path("environment")).unwrap();
    assert!(environment.contains(&format!("PUNCTUAL_STORE={store}\n")), "{environment}");
    assert!(!environment.contains("PUNCTUAL_GROUP"), "{environment}");
}

/// SIGKILL finds whatever stands between the worker and a command, too.
#[test]
fn a_command_that_nobody_watches_over_any_more_is_ended_and_runs_again() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A} --max-attempts 1"));
    let command = "trap '' TERM; echo $$ > command; echo $PPID > watcher; while :; do sleep 0.01; done";
    let worker = Worker::start(&t, command, "");
    let (watcher, command) = (t.wait_for_file("watcher"), t.wait_for_file("command"));
    let watcher = process(&watcher);
    // From then on the worker knows whom it watches over.
    let stderr = || fs::read_link(format!("/proc/{watcher}/fd/2")).ok();
    wait(|| (stderr()? == *"/dev/null").then_some(()), || "it keeps the command's pipe".into());
    kill_process(watcher, Signal::KILL).unwrap();
    let job = t.wait_for(A, "dead");
    assert!(is_over(process(&command)), "the command runs on: {job}");
    assert!(job["last_error"].as_str().unwrap().contains("was killed"), "{job}");
    worker.stop().ok();
}

/// A command that became another user's process ends with no signal of its worker. Here the process that would report its end stands
/// still instead, which is the same to the worker.
#[test]
fn a_command_that_outlives_sigkill_is_reported() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A} --timeout 1s"));
    let command = "echo $PPID > watcher; exec sleep 600";
    let worker = Worker::start(&t, command, "--kill-after 100ms --health-file health");
    let watcher = process(&t.wait_for_file("watcher"));
    kill_process(watcher, Signal::STOP).unwrap();
    let why = || t.json(&format!("why {A}"));
    let reported = || {
        let text = why().to_string();
        (text.contains("the run reported last: the command outlives SIGKILL")).then_some(text)
    };
    wait(reported, || why().to_string());
    let held_up = format!("held up: job {A}: the command outlives SIGKILL");
    let health = || std::fs::read_to_string(t.path("health")).unwrap_or_default();
    wait(|| health().starts_with(&held_up).then_some(()), health);
    kill_process(watcher, Signal::CONT).unwrap();
    wait(|| (why()["state"] != "running").then_some(()), || why().to_string());
    let said = worker.stop();
    assert_eq!(said.err.matches("outlives SIGKILL").count(), 1, "{}", said.err);
}

/// What a worker cannot start is no attempt: another one runs it, and the first goes on when it can.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_started_is_no_attempt() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

    let t = Cli::new();
    let log = t.path("starved.log");
    let said = || fs::read_to_string(&log).unwrap();
    let mut starved = t.command("work --exec true -q mail --slots 4 -v".split_whitespace());
    let starved = Worker(Some(starved.stderr(fs::File::create(&log).unwrap()).spawn().unwrap()));
    t.ok(&format!("push k -q mail --id {A}"));
    t.wait_for(A, "done");
    let pid = Pid::from_child(starved.0.as_ref().unwrap());
    let before = getrlimit(Resource::Nofile);
    // Fewer than it has open: it gets no further ones.
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(3), maximum: before.maximum }).unwrap();
    for n in 0..6 {
        t.ok(&format!("push k {n} -q mail --max-attempts 1"));
    }
    // Only then, since it would be the first to get them.
    let is_told = || said().contains("a job could not be started here").then_some(());
    wait(is_told, said);
    let healthy = Worker::start(&t, "true", "-q mail");
    let done = || Some(()).filter(|()| t.json("stats")["done"] == 7);
    wait(done, || t.ok("ls --all"));
    healthy.stop().ok();
    t.ok(&format!("push k -q mail --max-attempts 1 --id {B}"));
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    let job = t.wait_for(B, "done");
    assert_eq!(job["attempt"], 1);
    starved.stop().ok();
    let said = said();
    assert!(said.contains("os error 24"), "{said}");
    assert!(said.contains("jobs can be started here again"), "{said}");
}
