//! `work --keep`: children that stay, in each language that has a library (`clients/`), and children that do not keep to the protocol.

use std::{collections::BTreeMap, fs, path::Path};

use punctual::store::wire::LINE_BYTES_MAX;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    exec::{Worker, is_over, process},
    fixture::{Cli, wait},
};

/// How the program of a language is started that runs the cases.
const CLIENTS: [(&str, &str); 4] = [
    ("python", "python3 clients/python/conformance.py"),
    ("node", "node clients/node/conformance.js"),
    ("ruby", "ruby clients/ruby/conformance.rb"),
    ("php", "php clients/php/conformance.php"),
];

/// Runs a case with each client that this machine has; in CI it must have all.
fn with_each_client(case: impl Fn(&str, &str)) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    for (language, command) in CLIENTS {
        let program = command.split(' ').next().unwrap();
        if std::process::Command::new(program).arg("--version").output().is_err() {
            eprintln!("MISSING: there is no {program}, so clients/{language} was not tested");
            assert!(std::env::var_os("CI").is_none(), "CI needs {program}");
            continue;
        }
        case(language, &format!("cd '{}' && exec {command}", root.display()));
    }
}

/// A command that runs a handler in Python.
fn python(t: &Cli, handler: &str) -> String {
    fs::write(t.path("worker.py"), handler).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python").canonicalize().unwrap();
    format!("PYTHONPATH='{}' exec python3 worker.py", root.display())
}

/// Pushes a job of a kind. Returns its id.
fn push(t: &Cli, kind: &str, more: &str) -> String {
    t.ok(&format!("push {kind} {more} -o ids")).trim().to_owned()
}

fn result(job: &Value) -> &Value {
    &job["result"]
}

fn first_error(job: &Value) -> &str {
    job["failures"][0]["error"].as_str().unwrap_or_default()
}

/// Pushes a job that makes a file when it begins, and may wait for another one. Returns its id.
fn push_begun(t: &Cli, kind: &str, name: &str) -> String {
    let path = |end: &str| t.path(&format!("{name}.{end}"));
    let payload = json!({"begun": path("begun"), "until": path("until")}).to_string();
    t.args(&["push", kind, &payload, "-o", "ids"]).ok().trim().to_owned()
}

#[test]
fn a_child_gives_each_verdict() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let kinds = [
            "result", "bytes", "retry", "later", "snooze", "dead", "cancel", "fail", "notes", "enqueue",
            "refused",
        ];
        let ids: BTreeMap<_, _> = kinds
            .map(|kind| {
                let said = t.args(&["push", kind, r#"{"x":[1,"ä"]}"#, "--tag", "a", "-o", "ids"]);
                (kind, said.ok().trim().to_owned())
            })
            .into();
        let worker = Worker::start(&t, command, "--keep 2");
        let ended = |kind: &str, status: &str| t.wait_for(&ids[kind], status);
        let job = ended("result", "done");
        let expected = json!({
            "id": ids["result"], "queue": "default", "attempt": 1, "tags": ["a"], "got": {"x": [1, "ä"]}
        });
        assert_eq!(result(&job), &expected, "{language}");
        assert_eq!(ended("bytes", "done")["result_base64"], "AP8=", "{language}");
        assert_eq!(first_error(&ended("retry", "retrying")), "busy", "{language}");
        let later = ended("later", "retrying");
        let after = later["run_at_ms"].as_u64().unwrap() - later["failures"][0]["ended_ms"].as_u64().unwrap();
        assert_eq!((first_error(&later), after), ("busy", 60_000), "{language}");
        let snoozed = ended("snooze", "scheduled");
        assert_eq!((&snoozed["attempt"], &snoozed["snoozes"]), (&json!(1), &json!(1)), "{language}");
        assert_eq!(ended("dead", "dead")["reason"], "no such user", "{language}");
        ended("cancel", "cancelled");
        assert!(first_error(&ended("fail", "retrying")).ends_with("it broke"), "{language}");
        let noted = ended("notes", "done");
        assert_eq!(noted["progress"], json!({"done": 1, "total": 2, "message": "half"}), "{language}");
        assert_eq!(
            (&noted["log"][0]["text"], result(&noted)),
            (&json!("a line"), &Value::Null),
            "{language}"
        );
        assert_eq!(result(&ended("enqueue", "done")), &json!({"status": "inserted"}), "{language}");
        assert!(first_error(&ended("refused", "retrying")).contains("invalid: queue is empty"), "{language}");
        let next = t.run("ls -q other -o ndjson").lines();
        assert_eq!((&next[0]["kind"], &next[0]["payload"]), (&json!("next"), &json!({"a": 1})), "{language}");
        let said = worker.stop();
        assert_eq!(said.code, Some(0), "{language}: {said:#?}");
        assert!(said.err.contains("this goes to stderr"), "{language}: {said:#?}");
        assert!(!said.err.contains("next one is started"), "{language}: {said:#?}");
    });
}

/// Threads of a handler enqueue at once, and look meanwhile whether the run has to end: each gets its own answers.
#[test]
fn threads_of_a_handler_share_its_job() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let id = push(&t, "threads", "--max-attempts 1 --timeout 40s");
        let worker = Worker::start(&t, command, "--keep 1");
        let job = t.wait_for_end(&id);
        let expected = match language {
            "php" => 20,
            "ruby" => 320,
            _ => 300,
        };
        assert_eq!((&job["status"], result(&job)), (&json!("done"), &json!(expected)), "{language}: {job}");
        assert_eq!(t.json("queue show other")["counts"]["waiting"], expected, "{language}");
        worker.stop().ok();
    });
}

/// A process that a handler forked would take answers and cancels of its parent, and write between its frames.
#[test]
fn a_forked_process_is_refused_each_call() {
    with_each_client(|language, command| {
        // It has no fork.
        if language == "node" {
            return;
        }
        let t = Cli::new();
        let id = push(&t, "forked", "--max-attempts 1 --timeout 40s");
        let worker = Worker::start(&t, command, "--keep 1");
        let job = t.wait_for_end(&id);
        assert_eq!((&job["status"], result(&job)), (&json!("done"), &json!(4)), "{language}: {job}");
        assert_eq!((&job["log"], &job["progress"]), (&Value::Null, &Value::Null), "{language}: {job}");
        worker.stop().ok();
    });
}

/// The work is done: it must not be done again because of what the handler returns.
#[test]
fn a_result_that_is_no_json_is_not_kept_and_runs_nothing_again() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let id = push(&t, "odd", "--max-attempts 3");
        let worker = Worker::start(&t, command, "--keep 1");
        let job = t.wait_for(&id, "done");
        assert_eq!((&job["attempt"], result(&job)), (&json!(1), &Value::Null), "{language}: {job}");
        assert_eq!(job["failures"], json!([]), "{language}: {job}");
        let log = job["log"][0]["text"].as_str().unwrap_or_default();
        assert!(
            log.starts_with("the result was not kept, because it cannot be written as JSON"),
            "{language}: {job}"
        );
        let said = worker.stop();
        assert!(
            said.err.contains(&format!("job {id} is done, but the result was not kept")),
            "{language}: {said:#?}"
        );
    });
}

/// A handler with `async` in the wrong library, or without its `await`, has done nothing.
#[test]
fn a_coroutine_that_nobody_has_run_is_no_result() {
    for handler in [
        "from punctual_worker import work\nasync def handle(job): pass\nwork(handle)\n",
        "from punctual_worker import work\ndef handle(job): yield\nwork(handle)\n",
        "from punctual_worker_async import work\nasync def deliver(): pass\nasync def handle(job): return deliver()\nwork(handle)\n",
    ] {
        let t = Cli::new();
        let id = push(&t, "k", "--max-attempts 1");
        let worker = Worker::start(&t, &python(&t, handler), "--keep 1");
        let job = t.wait_for_end(&id);
        let error = job["last_error"].as_str().unwrap_or_default();
        assert!(error.starts_with("TypeError: the handler returned a "), "{handler}: {job}");
        worker.stop().ok();
    }
}

/// What `job.cancelled` reads is for the loop, and an answer for a thread's own loop has to wake that loop.
#[test]
fn an_async_handler_looks_and_enqueues_from_threads() {
    let t = Cli::new();
    let id = push(&t, "k", "--max-attempts 1 --timeout 40s");
    let command = python(
        &t,
        "import asyncio, threading, time\n\
         from punctual_worker_async import work\n\
         async def handle(job):\n\
         \x20   over = threading.Event()\n\
         \x20   def watch():\n\
         \x20       while not over.is_set() and not job.cancelled: time.sleep(0)\n\
         \x20   def own():\n\
         \x20       async def all():\n\
         \x20           return await asyncio.gather(*[job.enqueue('next', queue='other') for _ in range(100)])\n\
         \x20       return len(asyncio.run(all()))\n\
         \x20   async def here():\n\
         \x20       n = 0\n\
         \x20       for _ in range(100): n += (await job.enqueue('next', queue='other'))['status'] == 'inserted' and not job.cancelled\n\
         \x20       return n\n\
         \x20   watched = asyncio.create_task(asyncio.to_thread(watch))\n\
         \x20   counts = await asyncio.gather(asyncio.to_thread(own), asyncio.to_thread(own), here(), here())\n\
         \x20   over.set()\n\
         \x20   await watched\n\
         \x20   return counts\n\
         work(handle, slots=1)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1");
    let job = t.wait_for_end(&id);
    assert_eq!((&job["status"], result(&job)), (&json!("done"), &json!([100, 100, 100, 100])), "{job}");
    worker.stop().ok();
}

/// A handler that does not await sees a cancel where it looks for one. What it has done by then counts.
#[test]
fn an_async_handler_that_does_not_await_sees_its_cancel() {
    let t = Cli::new();
    let id = push(&t, "k", "--max-attempts 1 --timeout 300ms");
    let command = python(
        &t,
        "import time\n\
         from punctual_worker_async import work\n\
         async def handle(job):\n\
         \x20   while not job.cancelled: time.sleep(0.01)\n\
         \x20   return job.cancelled\n\
         work(handle, slots=1)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --kill-after 40s");
    let job = t.wait_for_end(&id);
    assert_eq!((&job["status"], result(&job)), (&json!("done"), &json!("timeout")), "{job}");
    worker.stop().ok();
}

#[test]
fn a_child_that_fails_is_named_and_replaced() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let ids = ["crash", "garbage", "half"].map(|kind| push(&t, kind, "--max-attempts 1"));
        let next = push(&t, "result", "1");
        let worker = Worker::start(&t, command, "--keep 1");
        t.wait_for(&next, "done");
        let errors = ids.map(|id| t.wait_for(&id, "dead")["last_error"].as_str().unwrap().to_owned());
        assert!(
            errors[0].contains("the child ended: ") && errors[0].contains("last words"),
            "{language}: {errors:?}"
        );
        assert!(
            errors[1].contains(r#"it wrote "Hello, world\n", which is no frame"#),
            "{language}: {errors:?}"
        );
        assert!(errors[2].contains("it ended within a frame"), "{language}: {errors:?}");
        worker.stop().ok();
    });
}

#[test]
fn a_run_that_has_to_end_is_asked_first_and_killed_then() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let [polite, deaf] = ["polite", "deaf"].map(|kind| push_begun(&t, kind, kind));
        let payload = json!({"begun": t.path("late")}).to_string();
        let late =
            t.args(&["push", "polite", &payload, "--timeout", "300ms", "-o", "ids"]).ok().trim().to_owned();
        let worker = Worker::start(&t, command, "--keep 3 --kill-after 3s");
        assert_eq!(first_error(&t.wait_for(&late, "retrying")), "timeout after 300ms", "{language}");
        for (id, name) in [(&polite, "polite.begun"), (&deaf, "deaf.begun")] {
            t.wait_for_file(name);
            t.ok(&format!("cancel {id} --yes"));
        }
        for id in [&polite, &deaf] {
            t.wait_for(id, "cancelled");
        }
        let said = worker.stop();
        assert_eq!(
            said.err.matches("it did not do what it was asked for").count(),
            1,
            "{language}: {said:#?}"
        );
    });
}

#[test]
fn a_child_reads_and_returns_large_payloads() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let text = "a".repeat((1 << 20) - 2);
        let id = t.feed("push length - -o ids", format!("\"{text}\"")).ok().trim().to_owned();
        let worker = Worker::start(&t, command, "--keep 1");
        let job = t.wait_for(&id, "done");
        let sum = 97 * ((1 << 20) - 2) + 2 * 34;
        assert_eq!(result(&job), &json!({"length": 1 << 20, "sum": sum}), "{language}");
        worker.stop().ok();
    });
}

#[test]
fn a_worker_that_stops_lets_a_run_finish() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let [slow, waits] = ["first", "second"].map(|name| push_begun(&t, "slow", name));
        let worker = Worker::start(&t, command, "--keep 1");
        t.wait_for_file("first.begun");
        worker.signal(Signal::TERM);
        fs::write(t.path("first.until"), "").unwrap();
        worker.said().ok();
        let states = [&slow, &waits].map(|id| t.json(&format!("show {id}"))["status"].clone());
        assert_eq!(states, ["done", "ready"], "{language}");
    });
}

/// Within its grace, a worker that stops asks no run to end.
#[test]
fn a_run_is_not_asked_to_end_within_the_grace() {
    let t = Cli::new();
    let id = push(&t, "k", "");
    let command = python(
        &t,
        "import time\n\
         from punctual_worker import work\n\
         def handle(job):\n\
         \x20   open('begun', 'w').write('begun\\n')\n\
         \x20   end = time.monotonic() + 1\n\
         \x20   while time.monotonic() < end and not job.cancelled: time.sleep(0.01)\n\
         \x20   return {'asked': job.cancelled}\n\
         work(handle)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1");
    t.wait_for_file("begun");
    worker.stop().ok();
    assert_eq!(t.json(&format!("show {id}"))["result"], json!({"asked": null}));
}

/// A job that is given back is free for others when nothing of its run is left.
#[test]
fn a_job_is_given_back_after_its_child_is_gone() {
    let t = Cli::new();
    let id = push(&t, "k", "");
    let command = python(
        &t,
        "import os, signal, time\n\
         from punctual_worker import work\n\
         def handle(job):\n\
         \x20   signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
         \x20   open('pid', 'w').write(f'{os.getpid()}\\n')\n\
         \x20   time.sleep(600)\n\
         work(handle)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --grace 0s --kill-after 1s");
    let child = process(&t.wait_for_file("pid"));
    worker.signal(Signal::TERM);
    t.wait_for(&id, "ready");
    assert!(is_over(child), "the job is free, and its run goes on");
    worker.said().ok();
}

#[test]
fn a_worker_that_may_not_wait_gives_its_jobs_back() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let ids = ["polite", "deaf"].map(|kind| push_begun(&t, kind, kind));
        let worker = Worker::start(&t, command, "--keep 2 --grace 0s --kill-after 1s");
        for name in ["polite.begun", "deaf.begun"] {
            t.wait_for_file(name);
        }
        worker.stop().ok();
        for id in &ids {
            let job = t.json(&format!("show {id}"));
            assert_eq!((&job["status"], &job["attempt"]), (&json!("ready"), &json!(1)), "{language}: {job}");
        }
    });
}

#[test]
fn a_child_dies_with_its_worker() {
    let t = Cli::new();
    let command = r#"echo $$ > pid; trap '' TERM; printf '\0\0\0\035{"type":"ready","protocol":1}' >&0; echo up > up; sleep 600"#;
    let worker = Worker::start(&t, command, "--keep 1");
    t.wait_for_file("up");
    let child = process(&t.wait_for_file("pid"));
    worker.signal(Signal::KILL);
    wait(|| is_over(child).then_some(()), || "the child outlived its worker".to_owned());
}

#[test]
fn a_child_that_cannot_start_is_named_and_burns_no_attempt() {
    for (command, what) in [
        ("no-such-program", "the child ended: exit status: 127"),
        ("echo hello >&2", "it did not say that it is ready"),
        ("echo hello >&0; sleep 600", r#"it wrote "hello\n", which is no frame"#),
        (
            r#"printf '\0\0\0\035{"type":"ready","protocol":2}' >&0; sleep 600"#,
            "it speaks version 2 of the protocol",
        ),
        (r#"printf '\0\0\0\047{"type":"ready","protocol":1,"slots":0}' >&0; sleep 600"#, "it has 0 slots"),
        (
            r#"printf '\0\0\0\045{"type":"log","run":1,"text":"hello"}' >&0; sleep 600"#,
            "its first frame is not `ready`",
        ),
    ] {
        let t = Cli::new();
        let id = push(&t, "k", "");
        let worker = Worker::start(&t, &format!("echo >> starts; {command}"), "--keep 1 --kill-after 100ms");
        // It was started again after that.
        wait(
            || (2 <= fs::read_to_string(t.path("starts")).unwrap_or_default().len()).then_some(()),
            || format!("{command} was not started twice"),
        );
        let said = worker.stop();
        assert!(said.err.contains(what), "{command}: {said:#?}");
        let job = t.json(&format!("show {id}"));
        assert_eq!((&job["state"], &job["attempt"]), (&json!("waiting"), &json!(1)), "{command}: {job}");
    }
}

/// A worker none of whose children starts holds no jobs: others run them, and they are no attempts.
#[test]
fn a_worker_without_children_leaves_its_jobs_to_others() {
    let t = Cli::new();
    let starved = Worker::start(&t, "echo >> starts; no-such-program", "--keep 2");
    t.wait_for_file("starts");
    let ids = [0; 4].map(|_| push(&t, "k", "--max-attempts 1"));
    let healthy = Worker::start(&t, "true", "");
    for id in &ids {
        assert_eq!(t.wait_for(id, "done")["attempt"], 1);
    }
    healthy.stop().ok();
    let said = starved.stop();
    assert!(
        said.err.contains("a job could not be started here") && said.err.contains("no child starts"),
        "{said:#?}"
    );
}

#[test]
fn a_child_is_replaced_after_its_jobs() {
    let t = Cli::new();
    let ids = [0; 5].map(|_| push(&t, "k", ""));
    let command = python(&t, "import os; from punctual_worker import work; work(lambda job: os.getpid())");
    let worker = Worker::start(&t, &command, "--keep 1 --jobs-per-child 2");
    let pids = ids.map(|id| t.wait_for(&id, "done")["result"].as_u64().unwrap());
    assert!(pids[0] == pids[1] && pids[1] != pids[2] && pids[2] == pids[3] && pids[3] != pids[4], "{pids:?}");
    let said = worker.stop();
    assert!(!said.err.contains("WARN"), "{said:#?}");
}

/// A job that leaves its child too large ends as it ends by itself. The next one runs in another child.
#[test]
fn a_child_that_has_too_much_memory_is_replaced_between_two_jobs() {
    let t = Cli::new();
    let ids = ["small", "large", "small", "small"].map(|kind| push(&t, kind, "--max-attempts 1"));
    let command = python(
        &t,
        "import os\n\
         from punctual_worker import work\n\
         kept = []\n\
         def handle(job):\n\
         \x20   if job.kind == 'large': kept.append(b'x' * (128 << 20))\n\
         \x20   return os.getpid()\n\
         work(handle)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --memory-per-child 96MiB");
    let pids = ids.map(|id| t.wait_for(&id, "done")["result"].as_u64().unwrap());
    assert!(pids[0] == pids[1] && pids[1] != pids[2] && pids[2] == pids[3], "{pids:?}");
    let said = worker.stop();
    assert!(!said.err.contains("WARN"), "{said:#?}");
}

/// What a child started counts, and ends with it. One job is enough each time, which is named once.
#[test]
fn what_a_child_started_counts_for_its_memory() {
    let t = Cli::new();
    let ids = [0; 3].map(|_| push(&t, "k", "--max-attempts 1"));
    let command = python(
        &t,
        "import os, subprocess, sys\n\
         from punctual_worker import work\n\
         code = \"x = b'x' * (128 << 20); print('up', flush=True); import time; time.sleep(600)\"\n\
         def handle(job):\n\
         \x20   started = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n\
         \x20   started.stdout.readline()\n\
         \x20   return [os.getpid(), started.pid]\n\
         work(handle)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --memory-per-child 96MiB");
    let pids = ids.map(|id| t.wait_for(&id, "done")["result"].clone());
    assert!(pids[0][0] != pids[1][0] && pids[1][0] != pids[2][0], "{pids:?}");
    // The second child began when nothing of the first one was left.
    assert!(is_over(process(&pids[0][1].to_string())));
    let said = worker.stop();
    assert_eq!(said.err.matches("--memory-per-child may be too small").count(), 1, "{said:#?}");
    assert_eq!(said.err.matches("WARN").count(), 1, "{said:#?}");
}

/// Other runs of a child that is too large may finish. Until then it takes no more jobs.
#[test]
fn a_child_that_has_too_much_memory_lets_its_other_runs_finish() {
    let t = Cli::new();
    let waits = push_begun(&t, "waits", "first");
    let command = python(
        &t,
        "import asyncio, os\n\
         from punctual_worker_async import work\n\
         kept = []\n\
         async def handle(job):\n\
         \x20   if job.kind == 'large': kept.append(b'x' * (128 << 20))\n\
         \x20   if job.kind == 'waits':\n\
         \x20       open(job.json()['begun'], 'w').write('begun\\n')\n\
         \x20       while not os.path.exists(job.json()['until']): await asyncio.sleep(0.01)\n\
         \x20   return [os.getpid(), len(kept)]\n\
         work(handle, slots=3)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --slots 3 --memory-per-child 96MiB");
    t.wait_for_file("first.begun");
    let large = push(&t, "large", "");
    let large = t.wait_for(&large, "done")["result"].clone();
    let next = push(&t, "small", "");
    t.wait_for(&next, "running");
    fs::write(t.path("first.until"), "").unwrap();
    let waits = t.wait_for(&waits, "done");
    assert_eq!((&waits["attempt"], result(&waits)), (&json!(1), &large));
    let next = t.wait_for(&next, "done")["result"].clone();
    assert!(next[0] != large[0] && next[1] == 0, "{large} {next}");
    worker.stop().ok();
}

/// It would never run a job, or be replaced after each: it is said, and the jobs wait.
#[test]
fn a_child_that_is_too_large_before_its_first_job_is_refused() {
    let t = Cli::new();
    let id = push(&t, "k", "");
    let command = python(&t, "from punctual_worker import work; open('starts', 'a').write('.'); work(print)");
    let worker = Worker::start(&t, &command, "--keep 1 --memory-per-child 1MiB");
    wait(
        || (3 <= fs::read_to_string(t.path("starts")).unwrap_or_default().len()).then_some(()),
        || "it was not started three times".to_owned(),
    );
    let said = worker.stop();
    assert!(
        said.err.contains("before its first job, and --memory-per-child is 1 024 KiB: raise the limit"),
        "{said:#?}"
    );
    let job = t.json(&format!("show {id}"));
    assert_eq!((&job["state"], &job["attempt"]), (&json!("waiting"), &json!(1)), "{job}");
    assert_eq!(job["failures"], json!([]), "{job}");
}

#[test]
fn the_memory_of_a_child_is_a_size_of_one_mib_or_more() {
    let t = Cli::new();
    for (size, word) in [("512", "at least 1MiB"), ("512MB", "such as 512MiB"), ("0", "at least 1MiB")] {
        t.run(&format!("work --exec true --keep 1 --memory-per-child {size}")).is_usage(word);
    }
    t.run("work --exec true --memory-per-child 512MiB").is_usage("--keep");
}

#[test]
fn an_async_child_runs_several_jobs_at_once() {
    let t = Cli::new();
    let ids = [0; 20].map(|_| push(&t, "k", ""));
    // Each waits until all are there.
    let command = python(
        &t,
        "import asyncio\n\
         from punctual_worker_async import work\n\
         here, all_here = [], None\n\
         async def handle(job):\n\
         \x20   global all_here\n\
         \x20   all_here = all_here or asyncio.Event()\n\
         \x20   here.append(job.id)\n\
         \x20   if len(here) == 20: all_here.set()\n\
         \x20   await all_here.wait()\n\
         \x20   return (await job.enqueue('next', queue='other'))['status']\n\
         work(handle, slots=20)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --slots 20");
    for id in ids {
        assert_eq!(t.wait_for(&id, "done")["result"], "inserted");
    }
    worker.stop().ok();
}

#[test]
fn a_job_of_a_child_that_is_too_long_ends_the_child() {
    let t = Cli::new();
    let id = push(&t, "k", "--max-attempts 1");
    let script = format!(
        "import os, time; from punctual_worker import work; \
         work(lambda job: (job._pipe.write({{\"type\": \"enqueue\", \"call\": 1, \"bytes\": {}}}), time.sleep(600)))",
        LINE_BYTES_MAX + 1
    );
    let command = python(&t, &script);
    let worker = Worker::start(&t, &command, "--keep 1");
    let job = t.wait_for(&id, "dead");
    assert!(job["last_error"].as_str().unwrap().contains("bytes can follow"), "{job}");
    worker.stop().ok();
}

/// Nothing of a child is left when its jobs are settled, also if it ended by itself and what it started has its socket.
#[test]
fn what_a_child_left_ends_with_it() {
    let t = Cli::new();
    let id = push(&t, "k", "--max-attempts 1");
    let command = python(
        &t,
        "import os, signal, time\n\
         from punctual_worker import work\n\
         def handle(job):\n\
         \x20   if os.fork() == 0:\n\
         \x20       signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
         \x20       os.setsid()\n\
         \x20       open('pid', 'w').write(f'{os.getpid()}\\n')\n\
         \x20       time.sleep(600)\n\
         \x20   while not os.path.exists('pid') or not open('pid').read().endswith('\\n'): time.sleep(0.01)\n\
         \x20   os.kill(os.getpid(), signal.SIGKILL)\n\
         work(handle)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --kill-after 200ms");
    let job = t.wait_for(&id, "dead");
    assert!(job["last_error"].as_str().unwrap().contains("the child ended: signal: 9"), "{job}");
    assert!(is_over(process(&t.wait_for_file("pid"))));
    worker.stop().ok();
}

/// Verdicts that a child wrote before it ended count, also if the worker could not write to it any more.
#[test]
fn what_a_child_said_before_it_ended_counts() {
    let t = Cli::new();
    let ids = [0; 5].map(|_| push(&t, "k", "--max-attempts 1"));
    let command = python(
        &t,
        "import asyncio, os\n\
         from punctual_worker import end\n\
         from punctual_worker_async import work\n\
         here = []\n\
         async def handle(job):\n\
         \x20   here.append(job)\n\
         \x20   while len(here) < 5: await asyncio.sleep(0.01)\n\
         \x20   for other in here[:4]: end(job._pipe, other, 'x' * 60_000, None)\n\
         \x20   os._exit(3)\n\
         work(handle, slots=5)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --slots 5");
    let over = |id: &String| {
        wait(
            || {
                Some(t.json(&format!("show {id}"))["status"].clone())
                    .filter(|status| status == "done" || status == "dead")
            },
            || format!("{id} did not end"),
        )
    };
    let mut ends: Vec<_> = ids.iter().map(over).collect();
    ends.sort_by_key(ToString::to_string);
    assert_eq!(ends, ["dead", "done", "done", "done", "done"]);
    worker.stop().ok();
}

/// A child that is ended for one run may finish its others between SIGTERM and SIGKILL.
#[test]
fn what_a_child_says_while_it_is_ended_counts() {
    let t = Cli::new();
    let [last, deaf] = ["last", "deaf"].map(|kind| push(&t, kind, "--max-attempts 1 --timeout 20s"));
    let command = python(
        &t,
        "import asyncio, os, signal\n\
         from punctual_worker import end\n\
         from punctual_worker_async import work\n\
         def finish(job):\n\
         \x20   end(job._pipe, job, 'fine', None)\n\
         \x20   os._exit(0)\n\
         async def handle(job):\n\
         \x20   if job.kind == 'last': signal.signal(signal.SIGTERM, lambda *_: finish(job))\n\
         \x20   open(f'{job.kind}.begun', 'w').write('begun\\n')\n\
         \x20   while True:\n\
         \x20       try: await asyncio.sleep(600)\n\
         \x20       except asyncio.CancelledError: pass\n\
         work(handle, slots=2)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --slots 2 --kill-after 1s");
    for name in ["last.begun", "deaf.begun"] {
        t.wait_for_file(name);
    }
    t.ok(&format!("cancel {deaf} --yes"));
    t.wait_for(&deaf, "cancelled");
    assert_eq!(result(&t.wait_for(&last, "done")), "fine");
    worker.stop().ok();
}

/// A child that enqueues more than fits into its socket neither blocks the worker nor itself.
#[test]
fn a_child_enqueues_many_jobs_at_once() {
    let t = Cli::new();
    let id = push(&t, "k", "");
    let command = python(
        &t,
        "import asyncio\n\
         from punctual_worker_async import work\n\
         async def handle(job):\n\
         \x20   all = await asyncio.gather(*[job.enqueue('next', 'x' * 1000, queue='other') for _ in range(3000)])\n\
         \x20   return len(all)\n\
         work(handle, slots=1)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1");
    assert_eq!(t.wait_for(&id, "done")["result"], 3_000);
    worker.stop().ok();
}

/// A result that cannot be kept concerns its job alone, and a cancel reaches a handler that has not begun.
#[test]
fn an_odd_result_ends_its_job_alone() {
    for library in ["punctual_worker", "punctual_worker_async"] {
        let t = Cli::new();
        let ids = ["odd", "large", "late", "plain"]
            .map(|kind| push(&t, kind, if kind == "late" { "--timeout 200ms" } else { "" }));
        let is_async = if library.ends_with("async") { "async " } else { "" };
        let command = python(
            &t,
            &format!(
                "import time\n\
                 from {library} import work\n\
                 {is_async}def handle(job):\n\
                 \x20   if job.kind == 'odd':\n\
                 \x20       time.sleep(0.5)\n\
                 \x20       return {{1, 2}}\n\
                 \x20   if job.kind == 'large': return 'x' * 100_000\n\
                 \x20   return 'fine'\n\
                 work(handle)\n"
            ),
        );
        let worker = Worker::start(&t, &command, "--keep 1 --slots 4 --kill-after 20s");
        let odd = t.wait_for(&ids[0], "done");
        assert!(odd["log"][0]["text"].as_str().unwrap().contains("TypeError"), "{library}: {odd}");
        let large = t.wait_for(&ids[1], "dead");
        assert!(
            large["reason"].as_str().unwrap().contains("its result has 100002 bytes"),
            "{library}: {large}"
        );
        assert_eq!(t.wait_for(&ids[3], "done")["result"], "fine", "{library}");
        let said = worker.stop();
        assert!(!said.err.contains("next one is started"), "{library}: {said:#?}");
    }
}

/// Jobs go to the child that runs the fewest.
#[test]
fn jobs_are_spread_over_the_children() {
    let t = Cli::new();
    let ids = [0; 4].map(|_| push(&t, "k", ""));
    let command = python(
        &t,
        "import asyncio, os, pathlib\n\
         from punctual_worker_async import work\n\
         async def handle(job):\n\
         \x20   pathlib.Path(f'here.{job.id}').touch()\n\
         \x20   while len(list(pathlib.Path('.').glob('here.*'))) < 4: await asyncio.sleep(0.01)\n\
         \x20   return os.getpid()\n\
         pathlib.Path(f'up.{os.getpid()}').touch()\n\
         work(handle, slots=4)\n",
    );
    // Both are ready before the queue is resumed.
    t.ok("queue pause default");
    let worker = Worker::start(&t, &command, "--keep 2 --slots 8");
    let up = || {
        fs::read_dir(t.path(""))
            .unwrap()
            .flatten()
            .filter(|f| f.file_name().to_string_lossy().starts_with("up."))
            .count()
    };
    wait(|| (up() == 2).then_some(()), || "two children never came up".to_owned());
    t.ok("queue resume default");
    let pids = ids.map(|id| t.wait_for(&id, "done")["result"].as_u64().unwrap());
    let distinct: std::collections::BTreeSet<_> = pids.into_iter().collect();
    assert_eq!(distinct.len(), 2);
    worker.stop().ok();
}

/// A child that closed its socket, and goes on for a while, gets no job and holds none up.
#[test]
fn a_child_that_closed_its_socket_is_replaced_beside_waiting_jobs() {
    let t = Cli::new();
    // The first child deserts with the first job; those after it work.
    let command = python(
        &t,
        "import os, signal, time\n\
         from punctual_worker import work\n\
         def handle(job):\n\
         \x20   if not os.path.exists('first'):\n\
         \x20       open('first', 'w').close()\n\
         \x20       signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
         \x20       os.close(job._pipe.fd)\n\
         \x20       time.sleep(600)\n\
         \x20   return 'fine'\n\
         work(handle)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1 --slots 4 --kill-after 1s");
    let ids = [0; 4].map(|_| push(&t, "k", "--max-attempts 1"));
    let over = |id: &String| {
        wait(
            || {
                let job = t.json(&format!("show {id}"));
                Some(job["status"].clone()).filter(|status| status == "done" || status == "dead")
            },
            || format!("{id} did not end"),
        )
    };
    let mut ends: Vec<_> = ids.iter().map(over).collect();
    ends.sort_by_key(ToString::to_string);
    assert_eq!(ends, ["dead", "done", "done", "done"]);
    worker.stop().ok();
}

/// A second verdict of a run may be meant for another one.
#[test]
fn a_second_verdict_ends_the_child() {
    let t = Cli::new();
    let id = push(&t, "k", "");
    let command = python(
        &t,
        "from punctual_worker import end, work\n\
         def handle(job):\n\
         \x20   end(job._pipe, job, 'first', None)\n\
         \x20   return 'second'\n\
         work(handle)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1");
    assert_eq!(t.wait_for(&id, "done")["result"], "first");
    // The child is gone before it gets another job, or that is retried in the next one.
    let next = push(&t, "k", "");
    assert_eq!(t.wait_for(&next, "done")["result"], "first");
    let said = worker.stop();
    assert!(said.err.contains("it wrote about run 1, which it does not have"), "{said:#?}");
}

#[test]
fn a_child_pauses_its_queue() {
    with_each_client(|language, command| {
        let t = Cli::new();
        let id = push(&t, "pause", "");
        let worker = Worker::start(&t, command, "--keep 1");
        assert_eq!(first_error(&t.wait_for(&id, "retrying")), "busy", "{language}");
        let next = push(&t, "result", "1");
        t.wait_for(&next, "blocked");
        worker.stop().ok();
    });
}

/// What a handler notes after its verdict is dropped.
#[test]
fn late_notes_end_no_child() {
    let t = Cli::new();
    let [first, second] = ["first", "second"].map(|kind| push(&t, kind, ""));
    let command = python(
        &t,
        "from punctual_worker import work\n\
         last = []\n\
         def handle(job):\n\
         \x20   for other in last: other.log('late'); other.progress(1)\n\
         \x20   last.append(job)\n\
         work(handle)\n",
    );
    let worker = Worker::start(&t, &command, "--keep 1");
    for id in [first, second] {
        t.wait_for(&id, "done");
    }
    let said = worker.stop();
    assert!(!said.err.contains("next one is started"), "{said:#?}");
}
