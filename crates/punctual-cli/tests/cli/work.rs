//! `work --exec`: a command per job.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Child,
};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::{
    exec::{Worker, is_over, process, signal},
    fixture::{A, B, C, Cli, Said, said, wait},
};

fn last_error(job: &Value) -> &str {
    job["last_error"].as_str().unwrap_or_default()
}

#[test]
fn a_command_finds_its_job_on_stdin_and_in_its_environment() {
    let t = Cli::new();
    t.args(&[
        "push",
        "email.send",
        r#"{"to":"ana"}"#,
        "-q",
        "mail",
        "--id",
        A,
        "--at",
        "2020-01-01T00:00:00Z",
    ])
    .ok();
    let worker = Worker::start(
        &t,
        "cat > payload; env | grep ^PUNCTUAL_ | sort > environment.new; mv environment.new environment",
        "-q mail",
    );
    let job = t.wait_for(A, "done");
    assert_eq!(fs::read_to_string(t.path("payload")).unwrap(), r#"{"to":"ana"}"#);
    let environment = fs::read_to_string(t.path("environment")).unwrap();
    for line in [
        format!("PUNCTUAL_JOB_ID={A}"),
        "PUNCTUAL_KIND=email.send".into(),
        "PUNCTUAL_QUEUE=mail".into(),
        "PUNCTUAL_ATTEMPT=1".into(),
        format!("PUNCTUAL_RUN_AT_MS={}", job["run_at_ms"]),
    ] {
        assert!(environment.lines().any(|l| l == line), "{line}: {environment}");
    }
    assert!(environment.contains("PUNCTUAL_FENCE="), "{environment}");
    let said = worker.stop();
    assert!(said.err.starts_with("1 done · latest start "), "{said:#?}");
    assert_eq!(said.code, Some(0));
}

#[test]
fn the_exit_code_is_the_verdict() {
    let t = Cli::new();
    for (id, payload) in [(A, "75"), (B, "100"), (C, "3")] {
        t.ok(&format!("push exit {payload} --id {id}"));
    }
    let worker =
        Worker::start(&t, "read code || true; echo \"the end is $code\" >&2; exit $code", "--snooze 1h");
    let dead = t.wait_for(B, "dead");
    assert_eq!((&dead["reason"], last_error(&dead)), (&"the end is 100".into(), "the end is 100"));
    let retrying = t.wait_for(C, "retrying");
    assert_eq!((&retrying["attempt"], last_error(&retrying)), (&2.into(), "the end is 3"));
    let snoozed = wait(
        || Some(t.json(&format!("show {A}"))).filter(|job| job["snoozes"] == 1),
        || "never snoozed".into(),
    );
    assert_eq!((&snoozed["status"], &snoozed["attempt"]), (&"scheduled".into(), &1.into()));
    worker.stop().ok();
}

#[test]
fn a_command_that_says_nothing_or_dies_is_told_by_its_end() {
    let t = Cli::new();
    t.ok(&format!("push k 1 --id {A}"));
    t.ok(&format!("push k 2 --id {B}"));
    let worker = Worker::start(&t, "read n || true; [ $n = 1 ] && exit 9; kill -9 $$", "");
    assert_eq!(last_error(&t.wait_for(A, "retrying")), "exit status: 9");
    assert!(last_error(&t.wait_for(B, "retrying")).contains("signal: 9"));
    worker.stop().ok();
}

#[test]
fn only_the_end_of_stderr_is_kept() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let worker =
        Worker::start(&t, "i=0; while [ $i -lt 2000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1", "");
    let job = t.wait_for(A, "retrying");
    let error = last_error(&job);
    assert!(error.ends_with("line 1998\nline 1999") && error.len() <= 1_024, "{error}");
    worker.stop().ok();
}

/// The payload is read, never run.
#[test]
fn nothing_of_a_job_reaches_the_shell() {
    let t = Cli::new();
    let evil = r#""$(touch x) `touch x`; touch x #' \" && touch x""#;
    t.args(&[
        "push",
        "$(touch x)",
        evil,
        "-q",
        "a;touch x",
        "--id",
        A,
        "--tag",
        "$(touch x)",
        "--header",
        "h=`touch x`",
    ])
    .ok();
    let mut command = t.command(["work", "--exec", "cat > seen", "-q", "a;touch x"]);
    let worker = Worker(Some(command.spawn().unwrap()));
    t.wait_for(A, "done");
    worker.stop().ok();
    assert_eq!(fs::read_to_string(t.path("seen")).unwrap(), evil);
    assert!(!t.path("x").exists());
}

#[test]
fn a_command_that_reads_nothing_may_do_so() {
    let t = Cli::new();
    let large = format!("\"{}\"", "x".repeat(1_000_000));
    t.feed(&format!("push k - --id {A}"), large).ok();
    let worker = Worker::start(&t, "exit 0", "");
    t.wait_for(A, "done");
    worker.stop().ok();
}

#[test]
fn a_timeout_ends_the_whole_group() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A} --timeout 500ms"));
    // A child of the command holds the files open; both have to go.
    let worker = Worker::start(&t, "sh -c 'echo $$ > inner; exec sleep 600' & echo $$ > outer; wait", "");
    let job = t.wait_for(A, "retrying");
    assert!(last_error(&job).starts_with("timeout after"), "{job}");
    for name in ["inner", "outer"] {
        let pid = t.wait_for_file(name);
        wait(|| is_over(process(&pid)).then_some(()), || format!("{name} lives on"));
    }
    worker.stop().ok();
}

#[test]
fn a_cancel_ends_the_command_unless_it_finished_the_work() {
    let t = Cli::new();
    t.ok(&format!("push k 1 --id {A}"));
    t.ok(&format!("push k 2 --id {B}"));
    let command = "read n || true; trap 'exit 0' TERM; [ $n = 1 ] && trap 'exit 1' TERM; echo > started.$n; sleep 600 & wait";
    let worker = Worker::start(&t, command, "--lease 1s");
    t.wait_for_file("started.1");
    t.wait_for_file("started.2");
    assert_eq!(t.ok(&format!("cancel {A}")), "cancel requested 5c1e9f0a\n");
    t.ok(&format!("cancel {B}"));
    t.wait_for(A, "cancelled");
    t.wait_for(B, "done");
    let why = t.ok(&format!("why {A}"));
    assert!(why.starts_with("cancelled: the job was cancelled"), "{why}");
    worker.stop().ok();
}

#[test]
fn a_command_whose_lease_was_lost_is_ended() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let frozen = Worker::start(&t, "echo $$ > started; exec sleep 600", "--lease 1s");
    let pid = t.wait_for_file("started");
    let worker = frozen.0.as_ref().unwrap();
    signal(worker, Signal::STOP);
    let other = Worker::start(&t, "exit 0", "--lease 1s");
    let job = t.wait_for(A, "done");
    assert_eq!((&job["attempt"], last_error(&job)), (&2.into(), "lease expired"));
    assert!(!is_over(process(&pid)), "nobody could tell it yet");
    signal(worker, Signal::CONT);
    wait(|| is_over(process(&pid)).then_some(()), || "the command lives on".into());
    assert!(frozen.stop().err.contains("1 lost"));
    other.stop().ok();
    assert_eq!(t.json(&format!("show {A}"))["status"], "done", "what came late changed nothing");
}

#[test]
fn a_worker_that_ends_lets_its_commands_finish() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let worker = Worker::start(&t, "echo > started; while [ ! -e go ]; do sleep 0.01; done", "");
    t.wait_for_file("started");
    let child = worker.0.as_ref().unwrap();
    signal(child, Signal::TERM);
    fs::write(t.path("go"), "").unwrap();
    let mut worker = worker;
    assert!(said(worker.0.take().unwrap()).err.starts_with("1 done · "));
    t.wait_for(A, "done");
}

#[test]
fn a_second_signal_gives_the_job_back_and_ends_the_command() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let mut worker = Worker::start(&t, "echo $$ > started; exec sleep 600", "");
    let pid = t.wait_for_file("started");
    let child = worker.0.take().unwrap();
    // Again and again: two that come too close together count as one.
    let ended = || {
        signal(&child, Signal::TERM);
        is_over(Pid::from_child(&child)).then_some(())
    };
    wait(ended, || "the worker goes on".into());
    let said = said(child);
    assert!(said.err.contains("1 released"), "{said:#?}");
    let job = t.json(&format!("show {A}"));
    assert_eq!((&job["status"], &job["attempt"]), (&"ready".into(), &1.into()), "it counts nothing");
    assert!(is_over(process(&pid)), "the command is seen to its end before the worker ends");
}

#[test]
fn queues_are_served_in_their_order_or_by_weight() {
    let t = Cli::new();
    let line = |queue| format!("{{\"kind\":\"k\",\"queue\":\"{queue}\"}}\n");
    let lines = (line("bulk") + &line("mail")).repeat(4);
    t.feed("push --batch -", &lines).ok();
    let worker = Worker::start(&t, "echo $PUNCTUAL_QUEUE >> order", "-q mail -q bulk --slots 1");
    wait(|| Some(()).filter(|()| t.json("stats")["done"] == 8), || "not all done".into());
    worker.stop().ok();
    assert_eq!(fs::read_to_string(t.path("order")).unwrap(), "mail\n".repeat(4) + &"bulk\n".repeat(4));

    fs::remove_file(t.path("order")).unwrap();
    t.feed("push --batch -", &lines).ok();
    let worker =
        Worker::start(&t, "echo $PUNCTUAL_QUEUE >> order", "-q mail=3 -q bulk=1 --weighted --slots 1");
    wait(|| Some(()).filter(|()| t.json("stats")["done"] == 16), || "not all done".into());
    worker.stop().ok();
    let order = fs::read_to_string(t.path("order")).unwrap();
    let first: Vec<&str> = order.lines().take(4).collect();
    assert_eq!(first.iter().filter(|queue| **queue == "mail").count(), 3, "{order}");
}

/// A push that waits by now, and what it says on stderr from then on.
fn waiting(t: &Cli, line: &str) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = t.command(line.split_whitespace()).spawn().unwrap();
    let mut talk = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = talk.next().unwrap();
    assert!(first.contains(", attempt 1/20"), "{first}");
    (child, talk)
}

#[test]
fn a_push_may_wait_for_the_end_of_its_job() {
    let t = Cli::new();
    let (done, _) = waiting(&t, &format!("push exit 0 --id {A} --wait 1m"));
    let (dead, _) = waiting(&t, &format!("push exit 100 --id {B} --wait 1m --json"));
    let worker = Worker::start(&t, "read code || true; echo the end >&2; exit $code", "");
    let done = said(done);
    let lines: Vec<&str> = done.out.lines().collect();
    assert_eq!(lines[0], "ready 5c1e9f0a  exit  queue default", "the receipt comes first");
    assert!(lines[1].starts_with("done 5c1e9f0a  after "), "{done:#?}");
    assert_eq!((done.code, lines.len()), (Some(0), 2));
    let dead = said(dead);
    let lines = dead.lines();
    assert_eq!((&lines[0]["status"], &lines[1]["state"]), (&"inserted".into(), &"dead".into()));
    assert_eq!((dead.code, &lines[1]["reason"]), (Some(1), &"the end".into()));
    // A duplicate of a job that has ended waits for nothing.
    t.ok(&format!("push exit 0 --id {A} --wait 1m"));
    assert_eq!(t.run(&format!("push exit 0 --id {B} --wait 1m")).code, Some(1));
    worker.stop().ok();
}

#[test]
fn a_wait_ends_before_its_job_if_it_must() {
    let t = Cli::new();
    let late = t.run(&format!("push k --in 1h --wait 50ms --id {A}"));
    assert!(late.out.starts_with("scheduled 5c1e9f0a"), "{late:#?}");
    assert_eq!(late.code, Some(7), "{late:#?}");
    assert!(late.err.contains("error: job 5c1e9f0a has not ended after 50ms\n"), "{late:#?}");
    assert!(late.err.contains("\n  code  timed_out (exit 7)\n"), "{late:#?}");

    let (child, talk) = waiting(&t, &format!("push k --in 1h --wait 1h --id {B}"));
    interrupt(child);
    assert_eq!(talk.collect::<String>(), format!("job {B} goes on"));
    assert_eq!(t.json(&format!("show {B}"))["status"], "scheduled");

    t.ok("queue set brief retention.cancelled.age=0s");
    let (child, talk) = waiting(&t, &format!("push k -q brief --in 1h --wait 1h --id {C}"));
    t.ok(&format!("cancel {C}"));
    assert_eq!(said(child).code, Some(3), "nobody knows how it ended");
    assert!(talk.collect::<String>().contains("let the queue keep ended jobs"));
}

#[test]
fn what_is_watched_is_shown_again_until_the_end() {
    let t = Cli::new();
    t.ok(&format!("push k --in 1h --id {A}"));
    for (line, word) in [
        ("ls --watch -o ids", A),
        ("stats -w", "waiting    1"),
        ("queue ls -w -o ids", "default"),
        (&format!("show {A} --watch"), "scheduled, attempt 1/20"),
        ("show 5c1e9f0a -w --json", "\"status\":\"scheduled\""),
    ] {
        let mut child = t.command(line.split_whitespace()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        for look in 1..=2 {
            assert!(out.any(|line| line.contains(word)), "{line}: look {look}");
        }
        let rest = std::thread::spawn(move || out.collect::<String>());
        let said = interrupt(child);
        assert!(!rest.join().unwrap().contains('\u{1b}'), "{line}: this is no terminal");
        assert!(!said.err.contains("error"), "{said:#?}");
    }
    let gone = t.command(["show", A, "-w"]).spawn().unwrap();
    t.ok(&format!("delete {A}"));
    said(gone).fails(3, "not_found", "there is no job");
}

/// Sends Ctrl-C to a command, which ends by it, and knows it.
fn interrupt(child: Child) -> Said {
    let ended = || {
        signal(&child, Signal::INT);
        is_over(Pid::from_child(&child)).then_some(())
    };
    wait(ended, || "it goes on".into());
    let said = said(child);
    assert_eq!(said.code, Some(130), "{said:#?}");
    said
}

#[test]
fn a_queue_has_slots_of_its_own() {
    let t = Cli::new();
    t.ok(&format!("push k -q mail --id {A}"));
    t.ok(&format!("push k -q mail --id {B}"));
    let command = "echo $PUNCTUAL_JOB_ID >> $PUNCTUAL_QUEUE; [ $PUNCTUAL_QUEUE = bulk ] || until [ -e go ]; do sleep 0.01; done";
    let worker = Worker::start(&t, command, "-q mail -q bulk --queue-slots mail=1 --queue-slots bulk=9");
    t.wait_for_file("mail");
    t.ok(&format!("push k -q bulk --id {C}"));
    t.wait_for(C, "done");
    assert_eq!(fs::read_to_string(t.path("mail")).unwrap(), format!("{A}\n"), "the other one waits its turn");
    fs::write(t.path("go"), "").unwrap();
    t.wait_for(B, "done");
    worker.stop().ok();
}

#[test]
fn the_report_can_be_json() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    let worker = Worker::start(&t, "true", "--json --name mine");
    t.wait_for(A, "done");
    let said = worker.stop();
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&report["done"], &report["lost"]), (&1.into(), &0.into()));
}

#[test]
fn what_ran_in_the_last_hour_is_told_by_stats() {
    let t = Cli::new();
    t.ok(&format!("push email.send --group acme -q mail --id {A}"));
    t.ok(&format!("push report.build -q mail --id {B} --max-attempts 1"));
    assert_eq!(t.json("stats")["last_hour"]["kinds"], Value::Array(vec![]), "nothing ran");
    assert!(!t.ok("stats").contains("last hour"));
    let command = r"if [ $PUNCTUAL_KIND = report.build ]; then echo 'no paper' >&2; exit 1; fi";
    let worker = Worker::start(&t, command, "-q mail");
    t.wait_for(A, "done");
    t.wait_for(B, "dead");
    worker.stop();
    let hour = &t.json("stats")["last_hour"];
    let one = |name: &str| serde_json::json!({"name": name, "runs": 1});
    assert_eq!(hour["kinds"], serde_json::json!([one("email.send"), one("report.build")]));
    assert_eq!(hour["queues"], serde_json::json!([{"name": "mail", "runs": 2}]));
    assert_eq!(hour["groups"], serde_json::json!([{"name": "acme", "queue": "mail", "runs": 1}]));
    let error = hour["errors"][0]["name"].as_str().unwrap().to_owned();
    assert!(error.contains("no paper"), "{error}");
    let text = t.ok("stats");
    assert!(
        text.ends_with(&format!(
            "\nlast hour  a worker that crashes may lose its last second\n\
             RUNS/1H  KIND\n      1  email.send\n      1  report.build\n\
             RUNS/1H  GROUP  QUEUE\n      1  acme   mail\n\
             RUNS/1H  ERROR\n      1  {error}\n"
        )),
        "{text}"
    );
    // They are not counted by queue.
    assert_eq!(t.json("stats -q mail").get("last_hour"), None);
}

#[test]
fn top_shows_queues_runs_and_the_last_hour() {
    let t = Cli::new();
    t.run("top").fails(5, "store_unavailable", "there is no store");
    t.ok(&format!("push email.send --group acme -q mail --id {A}"));
    t.ok("queue pause bulk");
    // What goes on behind its worker ends with the folder.
    let command = "while [ -e hold ]; do sleep 0.1; done";
    let worker = Worker::start(&t, command, "-q mail --name web-1");
    t.wait_for(A, "done");
    fs::write(t.path("hold"), "").unwrap();
    t.ok(&format!("push report.build -q mail --max-attempts 3 --id {B}"));
    t.wait_for(B, "running");
    // A second after its end at the latest the first job is counted. A worker that is gone hears of no cancel.
    let look = wait(
        || Some(t.json("top")).filter(|look| !look["last_hour"]["kinds"].as_array().unwrap().is_empty()),
        || t.ok("top"),
    );
    drop(worker);
    t.ok(&format!("cancel {B}"));
    assert_eq!((&look["running"], &look["queues_total"]), (&1.into(), &2.into()));
    assert_eq!(
        (&look["queues"][0]["name"], &look["queues"][0]["runs_1h"]),
        (&"mail".into(), &1.into()),
        "the one that ran most comes first"
    );
    assert_eq!((&look["queues"][1]["name"], &look["queues"][1]["paused"]), (&"bulk".into(), &true.into()));
    let run = &look["runs"][0];
    assert_eq!((&run["id"], &run["worker"], &run["attempt"]), (&B.into(), &"web-1".into(), &1.into()));
    assert_eq!(look["last_hour"]["groups"][0]["name"], "acme");
    let looks = t.run("top -n 2 -o ndjson").lines();
    assert_eq!(looks.len(), 2);
    assert_eq!(looks[0]["queues"][0].get("runs_per_s"), None, "one look tells no rate");
    let text = t.ok("top --rounds 2");
    let heads: Vec<&str> = text.lines().filter(|line| line.contains("durability full")).collect();
    assert!(heads.len() == 2 && !text.contains('\u{1b}'), "{text}");
    let line = |begin: &str| {
        let line = text.lines().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("waiting"), "waiting 0 (due 0, retrying 0) running 1 done 1 dead 0 cancelled 0");
    assert_eq!(
        line("QUEUE"),
        "QUEUE DUE WAITING RUNNING RETRYING DEAD RUNS/S RUNS/1H OLDEST DUE OLDEST BLOCKED PAUSED"
    );
    assert!(line("bulk").ends_with(" paused"), "{text}");
    let run = line("5c1e9f0b");
    assert!(run.starts_with("5c1e9f0b report.build mail web-1 "), "{run}");
    assert!(run.ends_with(" 1/3 requested"), "{run}");
    t.run("top -n 0").is_usage("--rounds");
}

#[test]
fn what_a_command_prints_is_its_result_and_what_it_complains_of_its_log() {
    let t = Cli::new();
    for (id, payload) in [(A, "json"), (B, "text"), (C, "large")] {
        t.ok(&format!("push print {payload} --id {id}").replace(payload, &format!("\"{payload}\"")));
    }
    let command = "read what || true; echo step one >&2; printf 'step two' >&2
        case $what in
            *json*) echo '{\"rows\":12345678901234567890}';;
            *text*) printf 'twelve rows';;
            *) head -c 65537 /dev/zero;;
        esac";
    let worker = Worker::start(&t, command, "--result --log");
    let job = t.wait_for(A, "done");
    assert_eq!(job["result"].to_string(), r#"{"rows":12345678901234567890}"#);
    let log = |job: &Value, n: usize| (job["log"][n]["attempt"].clone(), job["log"][n]["text"].clone());
    assert_eq!([log(&job, 0), log(&job, 1)], [(1.into(), "step one".into()), (1.into(), "step two".into())]);
    let text = t.wait_for(B, "done");
    assert_eq!(
        (&text["result"], &text["result_content_type"]),
        (&"twelve rows".into(), &"text/plain".into())
    );
    let dead = t.wait_for(C, "dead");
    assert!(
        dead["reason"].as_str().unwrap().contains("printed more than 65536 bytes as its result"),
        "{dead}"
    );
    let shown = t.ok(&format!("show {B}"));
    assert!(shown.contains("twelve rows    11 bytes text/plain") && shown.contains("step one"), "{shown}");
    // Listings tell neither, but what is asked for.
    assert_eq!(t.json("ls")["jobs"][0].get("log"), None);
    assert_eq!(t.json("ls state:done --fields id,result")["jobs"][0].as_object().unwrap().len(), 2);
    // What is listed can be pushed again.
    let other = Cli::new();
    other.feed("push --batch -", t.ok("ls --all -o ndjson --fields kind,payload,result,log,progress")).ok();
    worker.stop();
}

#[test]
fn push_waits_for_the_result() {
    let t = Cli::new();
    let worker = Worker::start(&t, "cat", "--result");
    let said = t.run(r#"push echo {"a":1} --wait 30s"#);
    assert!(
        said.out.contains("done") && said.out.contains(r#"{"a":1}    7 bytes application/json"#),
        "{said:#?}"
    );
    assert_eq!(said.code, Some(0));
    worker.stop();
}

/// In other queues, these are all queues, or several. Here they are names, and the worker would be idle for ever.
#[test]
fn a_pattern_or_a_list_is_no_queue() {
    let t = Cli::new();
    t.ok("push k -q mail");
    for (names, name) in [
        (&["-q", "*"][..], "*"),
        (&["-q", "ma*"], "ma*"),
        (&["-q", "mail,bulk"], "mail,bulk"),
        (&["-q", "mail;bulk"], "mail;bulk"),
        (&["-q", "mail bulk"], "mail bulk"),
        (&["-q", "mail "], "mail "),
        (&["-q", "mail", "-q", "mail,bulk"], "mail,bulk"),
        (&["--weighted", "-q", "mail=3,bulk=1"], "mail=3,bulk"),
    ] {
        let words: Vec<&str> = ["work", "--exec", "true"].into_iter().chain(names.iter().copied()).collect();
        let said = t.args(&words);
        said.fails(2, "invalid", &format!("there is no queue {name:?}"));
        assert!(said.err.contains("name each queue: -q mail -q bulk"), "{said:#?}");
    }
    t.args(&["forward", "-q", "mail,bulk", "--to", "redis://127.0.0.1:1/0?stream=s"]).fails(
        2,
        "invalid",
        "there is no queue \"mail,bulk\"",
    );
    // One that exists is served.
    let id = t.args(&["push", "k", "-q", "mail,bulk", "-o", "ids"]).ok();
    let worker = Worker::start(&t, "true", "-q mail,bulk");
    t.wait_for(id.trim(), "done");
    worker.stop().ok();
}

#[test]
fn the_log_says_the_grace_of_the_command_line() {
    let t = Cli::new();
    let id = t.ok("push k -o ids");
    let worker = Worker::start(&t, "true", "-v --grace 5s");
    t.wait_for(id.trim(), "done");
    let said = worker.stop();
    let graces: Vec<&str> = said.err.split_whitespace().filter(|word| word.starts_with("grace=")).collect();
    assert_eq!(graces, ["grace=5s"], "{said:#?}");
}
