//! `push` of one job.

use crate::fixture::{A, B, Cli, masked, said};

#[test]
fn a_job_for_now_is_ready_and_one_for_later_scheduled() {
    let t = Cli::new();
    let now = t.args(&["push", "email.send", r#"{"to":"ana"}"#, "--id", A]).ok();
    assert_eq!(now, "ready 5c1e9f0a  email.send  queue default\n");
    let later =
        t.args(&["push", "email.send", "{}", "--in", "2h", "-q", "mail", "-p", "high", "--id", B]).ok();
    assert_eq!(
        masked(&later),
        "scheduled 5c1e9f0b  email.send  queue mail  due TIME (in 2h)  priority high\n"
    );
}

#[test]
fn the_answer_can_be_json_or_an_id() {
    let t = Cli::new();
    let said = t.ok(&format!("push report --id {A} --at 2100-01-01T00:00:00Z -q reports --json"));
    assert_eq!(
        said,
        format!(
            "{{\"id\":\"{A}\",\"status\":\"inserted\",\"state\":\"scheduled\",\"kind\":\"report\",\"queue\":\"reports\",\"run_at_ms\":4102444800000}}\n"
        )
    );
    assert_eq!(t.ok(&format!("push report --id {B} -o ids")), format!("{B}\n"));
}

#[test]
fn a_duplicate_is_an_answer_unless_it_must_be_new() {
    let t = Cli::new();
    let push = format!("push email.send null --in 2h --unique welcome:42 --id {A}");
    t.ok(&push);
    let again = t.ok("push email.send null --in 3h --unique welcome:42");
    assert_eq!(
        masked(&again),
        "duplicate 5c1e9f0a  email.send scheduled with unique key welcome:42, due TIME (in 2h)\n"
    );
    t.run("push email.send null --unique welcome:42 --must-be-new").fails(
        4,
        "conflict",
        "job 5c1e9f0a is not new",
    );
    let moved = t.ok("push email.send null --in 5h --unique welcome:42 --on-conflict reschedule");
    assert_eq!(masked(&moved), "rescheduled 5c1e9f0a  email.send  queue default  due TIME (in 5h)\n");
    let replaced = t
        .args(&[
            "push",
            "email.send",
            "[1]",
            "--unique",
            "welcome:42",
            "--on-conflict",
            "replace",
            "--in",
            "1h",
        ])
        .ok();
    assert_eq!(masked(&replaced), "replaced 5c1e9f0a  email.send  queue default  due TIME (in 1h)\n");
    assert_eq!(t.json(&format!("show {A}"))["payload"], serde_json::json!([1]));
}

/// Keys are those of a kind, unless both say otherwise; then the answer tells the kind that was met.
#[test]
fn a_key_is_one_of_its_kind_unless_it_is_across_kinds() {
    let t = Cli::new();
    for push in ["push mail --unique order-7", "push mail --idempotency-key order-7"] {
        t.ok(&format!("{push} --must-be-new"));
        t.ok(&format!("{} --must-be-new", push.replace("mail", "invoice")));
    }
    t.ok(&format!("push mail --unique order-8 --across-kinds --id {A}"));
    let met = t.ok("push invoice null --unique order-8 --across-kinds");
    assert_eq!(masked(&met), "duplicate 5c1e9f0a  mail ready with unique key order-8\n");
    let met = t.json("push invoice null --unique order-8 --across-kinds");
    assert_eq!((&met["kind"], &met["state"]), (&"mail".into(), &"ready".into()));
    let first = t.json("push mail --idempotency-key order-9 --across-kinds");
    assert_eq!(t.json("push invoice --idempotency-key order-9 --across-kinds")["id"], first["id"]);
}

#[test]
fn the_same_idempotency_key_enqueues_one_job() {
    let t = Cli::new();
    let first = t.json("push k --idempotency-key order-42");
    let second = t.json("push k --idempotency-key order-42");
    assert_eq!((&first["status"], &second["status"]), (&"inserted".into(), &"duplicate".into()));
    assert_eq!(first["id"], second["id"]);
}

#[test]
fn every_option_arrives() {
    let t = Cli::new();
    t.args(&[
        "push",
        "k",
        r#"{"n": 12345678901234567890}"#,
        "--id",
        A,
        "-q",
        "mail",
        "--in",
        "1d",
        "-p",
        "2",
        "--unique",
        "u",
        "--scope",
        "window:1d",
        "--group",
        "acme",
        "--concurrency-key",
        "box",
        "--concurrency-limit",
        "2",
        "--max-attempts",
        "3",
        "--backoff",
        "linear 10s..1h",
        "--timeout",
        "30s",
        "--lease",
        "20s",
        "--expires",
        "+2d",
        "--tag",
        "vip",
        "--tag",
        "b c",
        "--header",
        "traceparent=00-1=2",
    ])
    .ok();
    let job = t.json(&format!("show {A}"));
    for (field, value) in [
        ("queue", r#""mail""#),
        ("priority", r#""low""#),
        ("unique", r#"{"key":"u","scope":{"window_ms":86400000},"on_conflict":"keep"}"#),
        ("group", r#""acme""#),
        ("concurrency_key", r#""box""#),
        ("concurrency_limit", "2"),
        ("max_attempts", "3"),
        ("backoff", r#"{"type":"linear","base_ms":10000,"max_ms":3600000,"jitter":true}"#),
        ("timeout_ms", "30000"),
        ("lease_ms", "20000"),
        ("tags", r#"["vip","b c"]"#),
        ("headers", r#"{"traceparent":"00-1=2"}"#),
        ("status", r#""scheduled""#),
    ] {
        assert_eq!(job[field], serde_json::from_str::<serde_json::Value>(value).unwrap(), "{field}");
    }
    let raw = t.ok(&format!("show {A} --json"));
    assert!(raw.contains(r#""payload":{"n": 12345678901234567890}"#), "kept as it was written: {raw}");
}

#[test]
fn payloads_come_from_files_and_stdin_too() {
    let t = Cli::new();
    std::fs::write(t.path("mail.json"), "{\"to\":\n\"ana\"}\n").unwrap();
    t.ok(&format!("push k @mail.json --id {A}"));
    assert_eq!(t.json(&format!("show {A}"))["payload"]["to"], "ana");
    t.feed(&format!("push k - --content-type text/plain --id {B}"), "not JSON").ok();
    let job = t.json(&format!("show {B}"));
    assert_eq!((&job["payload"], &job["content_type"]), (&"not JSON".into(), &"text/plain".into()));
    t.run("push k @missing.json").fails(2, "invalid", "could not read the payload from \"missing.json\"");
}

#[test]
fn globals_may_stand_anywhere() {
    let t = Cli::new();
    let url = format!("sqlite:{}", t.path("other.db").display());
    t.ok(&format!("--store {url} push k --id {A}"));
    assert_eq!(t.ok(&format!("ls -o ids --store {url}")), format!("{A}\n"));
    t.ok("queue pause q");
    assert_eq!(t.ok("ls -o ids"), "", "another store");
    let named = t.command(["ls", "-o", "ids"]).env("PUNCTUAL_STORE", &url).output().unwrap();
    assert_eq!(String::from_utf8(named.stdout).unwrap(), format!("{A}\n"));
}

#[test]
fn a_push_that_nobody_hears_of_is_no_success() {
    let t = Cli::new();
    for more in ["--wait 1h", ""] {
        let mut child = t.command(format!("push k --in 1h {more}").split_whitespace()).spawn().unwrap();
        drop(child.stdout.take());
        let said = said(child);
        assert_eq!(said.code, Some(1), "{more}: {said:#?}");
        assert!(said.err.contains("the reader of stdout went away"), "{more}: {said:#?}");
        let id = t.ok("ls -o ids --limit 1");
        assert!(said.err.contains(id.trim()), "{more}: {id} {said:#?}");
        t.ok(&format!("delete {} --yes", id.trim()));
    }
}

/// A time without a zone needs one, and a mistyped TZ names none: it must not be UTC without a word.
#[test]
fn a_time_by_a_clock_that_does_not_exist_is_refused() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A} --in 1h"));
    let run = |zone: &str, words: &[&str]| {
        let mut command = t.command(words.iter().chain(&["--tz", "local"]));
        said(command.env("TZ", zone).spawn().unwrap())
    };
    let time = "2031-07-01 09:00";
    for words in [
        &["push", "k", "--at", time][..],
        &["push", "k", "--expires", time],
        &["reschedule", A, "--at", time],
        &["topic", "publish", "news", "k", "--at", time],
    ] {
        let said = run("Europe/Berlni", words);
        said.fails(2, "invalid", "the variable TZ is \"Europe/Berlni\", which is no time zone");
    }
    for (zone, time) in [
        ("Europe/Berlni", "2031-07-01T09:00Z"),
        ("Europe/Berlni", "+1h"),
        ("Europe/Berlin", time),
        ("", time),
    ] {
        run(zone, &["push", "k", "--at", time]).ok();
    }
}

/// A variable from a file of Windows, or a secret with a line break at its end.
#[test]
fn an_address_of_a_store_that_ends_with_white_space_is_refused() {
    let t = Cli::new();
    for end in ["\r", "\n", " ", "\r\n"] {
        for words in [&["push", "k"][..], &["work", "--exec", "true"], &["ls"], &["doctor"]] {
            let mut command = t.command(words);
            command.env("PUNCTUAL_STORE", format!("sqlite:jobs.db{end}"));
            let said = said(command.spawn().unwrap());
            said.fails(2, "invalid", "the address of the store begins or ends with white space");
        }
    }
    assert_eq!(std::fs::read_dir(t.path("")).unwrap().count(), 0, "a store was made");
}

/// Names that nobody means: a line break of a file, white space at an end, and folders of addresses.
#[test]
fn a_new_job_has_a_plain_kind_and_queue() {
    let t = Cli::new();
    for (kind, queue, message) in [
        ("k\n", "q", "kind contains a control character"),
        ("a\tb", "q", "kind contains a control character"),
        (" k", "q", "kind \" k\" begins or ends with white space"),
        ("k", "q ", "queue \"q \" begins or ends with white space"),
        ("k", "\u{a0}q", "queue \"\\u{a0}q\" begins or ends with white space"),
        ("k", "q\r", "queue contains a control character"),
        ("k", ".", "queue \".\" has no address"),
        ("k", "..", "queue \"..\" has no address"),
    ] {
        t.args(&["push", kind, "-q", queue]).fails(2, "invalid", message);
    }
    t.args(&["queue", "limit", "q ", "--concurrency", "1"]).fails(2, "invalid", "queue \"q \" begins");
    t.args(&["topic", "subscribe", "news", "q "]).fails(2, "invalid", "queue \"q \" begins");
    t.args(&["push", "a b", "-q", "c d"]).ok();
}
