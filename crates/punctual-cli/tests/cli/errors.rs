//! What is refused, and how it is told.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::fixture::{A, Cli, said};

#[test]
fn numbers_and_times_that_make_no_sense_are_refused() {
    let t = Cli::new();
    t.ok("queue set q order=lifo");
    for (line, message) in [
        ("push k --at 10000-01-01T00:00:00Z", "\"10000-01-01T00:00:00Z\" is not a time"),
        ("push k --at 1795192330000", "\"1795192330000\" is not a time"),
        ("push k --at 1960-01-01T00:00:00Z", "\"1960-01-01T00:00:00Z\" is before 1970"),
        ("push k --in 1000000000000000s", "delay_ms: a delay of 1000000000000000 s is over the limit"),
        ("push k --max-attempts 0", "max_attempts 0 is not within 1 to 10000"),
        ("push k --timeout 8d", "timeout_ms 691200000 is not within"),
        ("push k --lease 1ms", "lease_ms 1 is not within"),
        ("push k --expires 2020-01-01T00:00:00Z", "expires_at"),
        ("push k --tz Nowhere/City", "there is no time zone \"Nowhere/City\""),
        ("push k {broken", "payload is not JSON"),
        ("push k -q $mine", "queue \"$mine\" is reserved"),
        ("ls kimd:x", "unknown field `kimd` in filter        did you mean `kind`?"),
        ("ls state:deed", "\"deed\" is not a state        did you mean `dead`?"),
        ("cancel nonsense", "\"nonsense\" is not a job id"),
        ("cancel 5c1e9f0a", "\"5c1e9f0a\" is only a part of a job id"),
        (
            "cancel 550e8400-e29b-41d4-a716-446655440000",
            "550e8400-e29b-41d4-a716-446655440000 is not a job id",
        ),
        ("queue set q order=up", "\"up\" is not a value of order"),
        ("queue set q max_job=1", "unknown setting `max_job`        did you mean `max_jobs`?"),
        ("work --exec true -q mail=3", "-q mail=3 has a weight"),
        (
            "work --exec true --queue-slots mail=3",
            "slots for queue \"mail\", which this worker does not serve",
        ),
        ("upcoming --for 0s", "--for must be at least 1 ms"),
    ] {
        t.run(line).fails(2, "invalid", message);
    }
    assert_eq!(t.ok("ls -o ids"), "", "nothing was written");
}

/// Neither a panic of the runtime, nor a store that is said to be missing.
#[test]
fn a_process_without_descriptors_is_told_so() {
    let (t, mut failed, mut listed) = (Cli::new(), 0, 0);
    t.ok("push k --store sqlite:punctual.db");
    for limit in 4..60 {
        let limited = format!("ulimit -n {limit} && exec \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_punctual"), "--store"]);
        shell.arg(format!("sqlite:{}", t.path("punctual.db").display())).arg("ls");
        let said =
            said(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        // The program's libraries could not be loaded.
        if said.code == Some(127) {
            continue;
        }
        if said.code == Some(0) {
            listed += 1;
        } else {
            said.fails(1, "failed", "a command needs 32 free file descriptors");
            failed += 1;
        }
    }
    assert!(0 < failed && 0 < listed, "{failed} failed, {listed} listed");
}

#[test]
fn command_lines_that_make_no_sense_are_refused() {
    let t = Cli::new();
    for (line, word) in [
        ("", "Usage"),
        ("puhs", "push"),
        ("push", "--batch"),
        ("push k --priority -1", "\"-1\" is not a priority"),
        ("push k --in soon", "is not a duration"),
        ("push k --in 1h --at now", "cannot be used with"),
        ("push k --in 1000000000000000000s", "invalid value '1000000000000000000s' for '--in <DURATION>'"),
        ("push k --in 999999999999999999999s", "is not a duration"),
        ("push k --backoff often", "is not a backoff"),
        ("push k --max-attempts -1", "-1"),
        ("push k --scope until_done", "--unique"),
        ("push k --batch -", "cannot be used with"),
        ("push k --id 550e8400-e29b-41d4-a716-446655440000", "is not a job id"),
        ("work --exec true --keep 2 --snooze 1m", "'--keep <N>' cannot be used with '--snooze <DURATION>'"),
        ("work --exec true --queue-slots mail", "write a queue and its slots, such as mail=5"),
        ("reschedule x", "--in"),
        ("cancel", "required"),
        ("ls -o yaml", "yaml"),
        ("ls --json -o ids", "cannot be used with"),
    ] {
        t.run(line).is_usage(word);
    }
}

#[test]
fn sizes_are_checked_on_entry() {
    let t = Cli::new();
    let too_large = format!("\"{}\"", "x".repeat(1024 * 1024));
    t.feed("push k -", too_large).fails(
        2,
        "payload_too_large",
        "payload of 1048578 bytes is over the limit of 1048576",
    );
    t.args(&["push", "k", "-q", &"q".repeat(300)]).fails(
        2,
        "invalid",
        "queue of 300 bytes is over the limit of 255",
    );
    t.args(&["push", &"k".repeat(300)]).fails(2, "invalid", "kind of 300 bytes is over the limit of 255");
    t.args(&["push", "k", "--tag", ""]).fails(2, "invalid", "tag is empty");
    t.args(&["push", "k", "-q", "a\nb"]).fails(2, "invalid", "queue contains a control character");
}

#[cfg(unix)]
#[test]
fn arguments_that_are_no_utf8_are_refused() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    let t = Cli::new();
    let output = t.command([OsStr::new("push"), OsStr::from_bytes(&[0xff])]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn what_is_not_there_is_not_found() {
    let t = Cli::new();
    t.ok("push k");
    for line in [format!("show {A}"), format!("why {A}"), format!("cancel {A}"), format!("delete {A}")] {
        t.run(&line).fails(3, "not_found", &format!("there is no job {A}"));
    }
    t.run("show 5c1e9f0a").fails(3, "not_found", "there is no job 5c1e9f0a");
    for line in ["queue show nowhere", "queue resume nowhere", "queue purge nowhere -y"] {
        t.run(line).fails(3, "queue_unknown", "there is no queue \"nowhere\"");
    }
}

#[test]
fn stores_that_are_none_are_refused() {
    let t = Cli::new();
    // The workers of a demo are processes of their own, so it would lose all jobs.
    for line in ["ls", "work --exec true", "demo", "forward -q mail --to http://127.0.0.1:9 --allow-private"]
    {
        t.run(&format!("{line} --store memory:")).fails(2, "unsupported", "memory: works with bench only");
    }
    let unknown = t.run("ls --store postgres://localhost/jobs");
    assert_eq!(unknown.code, Some(2), "{unknown:#?}");
    fs::write(
        t.path("text.db"),
        "this is a text, and no database at all, however long it is read\n".repeat(100),
    )
    .unwrap();
    let text = t.run("ls --store sqlite:text.db");
    assert_eq!(text.code, Some(1), "{text:#?}");
    assert!(text.err.contains("code  corrupt"), "{text:#?}");
    assert!(fs::read_to_string(t.path("text.db")).unwrap().starts_with("this is a text"), "left as it was");
}

#[test]
fn a_store_that_is_not_there_is_made_only_by_those_who_put_something_in() {
    let t = Cli::new();
    let needs_one = [
        "ls",
        "show 5c1e9f0a",
        "why 5c1e9f0a",
        "stats",
        "upcoming",
        "audit --repair",
        "doctor",
        "take",
        "queue ls",
        "queue show mail",
        "queue resume mail",
        "queue purge mail -y",
        "cancel 5c1e9f0a",
        "delete --where kind:k -y",
    ];
    for line in needs_one {
        for store in ["sqlite:punctual.db", "sqlite:no/such/folder.db?durability=fast"] {
            let said = t.run(&format!("{line} --store {store}"));
            said.fails(5, "store_unavailable", "there is no store at ");
            assert!(
                said.err
                    .contains("\n  try   check --store and PUNCTUAL_STORE; punctual push creates a store"),
                "{said:#?}"
            );
        }
    }
    assert_eq!(fs::read_dir(t.path("")).unwrap().count(), 0, "not even a sidecar is left behind");
    for (line, name) in [("push k", "a.db"), ("queue set q order=lifo", "b.db"), ("queue pause q", "c.db")] {
        t.ok(&format!("{line} --store sqlite:{name}"));
        t.ok(&format!("audit --store sqlite:{name}"));
    }
    t.run("push k --store sqlite:d.db?mode=rw").fails(5, "store_unavailable", "there is no store at d.db");
}

#[test]
fn a_store_of_a_newer_version_is_left_alone() {
    let t = Cli::new();
    t.ok("push k");
    let file = rusqlite::Connection::open(t.path("punctual.db")).unwrap();
    assert_eq!(file.execute("UPDATE punctual_meta SET v = 9999 WHERE k = 'schema'", []).unwrap(), 1);
    drop(file);
    let said = t.run("ls");
    assert_eq!(said.code, Some(2), "{said:#?}");
    assert!(said.err.contains("code  outdated"), "{said:#?}");
    assert!(said.err.contains("nothing was changed"), "{said:#?}");
}

#[test]
fn a_store_that_cannot_be_opened_says_so() {
    let t = Cli::new();
    fs::create_dir(t.path("folder.db")).unwrap();
    let push = |url: &str| t.run(&format!("push k --store {url}"));
    push("sqlite:missing/folder/jobs.db").fails(5, "store_unavailable", "could not open missing/folder");
    push("sqlite:folder.db").fails(2, "invalid", "could not open folder.db: it is a folder");
}

#[cfg(unix)]
#[test]
fn a_file_that_may_only_be_read_is_left_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let t = Cli::new();
    t.ok("push k");
    fs::set_permissions(t.path("punctual.db"), fs::Permissions::from_mode(0o400)).unwrap();
    // Who may write anyway (root) is not stopped.
    let may_write = fs::OpenOptions::new().write(true).open(t.path("punctual.db")).is_ok();
    let said = t.run("push k");
    assert_eq!(said.code, Some(if may_write { 0 } else { 5 }), "{said:#?}");
}

#[test]
fn a_command_gives_up_when_its_time_is_over() {
    let t = Cli::new();
    t.ok(&format!("push k --in 1h --id {A} --timeout 7s"));
    assert_eq!(t.json(&format!("show {A} --timeout 1h"))["timeout_ms"], 7_000, "to push it is the job's");
    // A process that stopped while it holds the store.
    let held = fs::OpenOptions::new().write(true).open(t.path("punctual.db-lock")).unwrap();
    held.lock().unwrap();
    for line in ["ls --timeout 50ms", "run-now --where kind:k --timeout 50ms"] {
        let said = t.run(line);
        said.fails(
            7,
            "timed_out",
            "not finished after 50ms\n  why   the store could not be opened in that time\n",
        );
    }
    held.unlock().unwrap();
    t.run("stats --watch --timeout 50ms").fails(7, "timed_out", "not finished after 50ms\n  code");
    // A program of others that holds the file: the store is open, and the change waits.
    let file = rusqlite::Connection::open(t.path("punctual.db")).unwrap();
    file.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begin = Instant::now();
    t.run(&format!("run-now {A} --timeout 300ms")).fails(8, "unknown_outcome", "no answer after 300ms");
    assert!(begin.elapsed() < Duration::from_secs(20), "it does not wait for the file after all");
    let said = t.run("doctor");
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.out.contains("another program holds the file locked"), "{said:#?}");
    file.execute_batch("ROLLBACK").unwrap();
    assert_eq!(t.json(&format!("show {A}"))["status"], "scheduled");
    for line in ["work --exec true", "serve", "bench", "demo"] {
        t.run(&format!("{line} --timeout 1s")).fails(
            2,
            "invalid",
            "--timeout does not work with work, forward, serve, bench and demo",
        );
    }
}

/// As of a variable that is unset. Each job would be done, and nothing would have run.
#[cfg(unix)]
#[test]
fn an_empty_command_is_refused() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    for keep in [&[][..], &["--keep", "1"]] {
        for command in ["", "  "] {
            let args = [&["work", "--exec", command], keep].concat();
            t.args(&args).fails(2, "invalid", "the command of --exec is empty");
        }
    }
    assert_eq!(t.json(&format!("show {A}"))["status"], "ready");
}

#[test]
fn completions_are_printed_for_every_shell() {
    let t = Cli::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(t.ok(&format!("completions {shell}")).contains("punctual"));
    }
    assert!(!t.path("punctual.db").exists(), "no store is needed");
}

#[test]
fn help_names_every_command() {
    let help = Cli::new().ok("--help");
    for command in [
        "push",
        "ls",
        "show",
        "why",
        "cancel",
        "reschedule",
        "run-now",
        "retry",
        "reprioritise",
        "edit",
        "delete",
        "take",
        "queue",
        "stats",
        "upcoming",
        "work",
        "audit",
        "doctor",
        "completions",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let t = Cli::new();
    t.feed("push --batch -", "{\"kind\":\"k\"}\n".repeat(5_000)).ok();
    let mut child = t.command(["ls", "--all", "-o", "ndjson"]).spawn().unwrap();
    drop(child.stdout.take());
    let said = crate::fixture::said(child);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
}
