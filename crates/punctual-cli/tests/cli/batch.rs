//! `push --batch`: lines in, receipts out.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
};

use serde_json::Value;

use crate::fixture::{A, Cli, said};

fn statuses(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["status"].as_str().unwrap()).collect()
}

#[test]
fn every_line_gets_a_receipt_in_its_place() {
    let t = Cli::new();
    let said = t.feed(
        "push --batch -",
        format!(
            "{{\"kind\":\"a\",\"id\":\"{A}\"}}\n{{\"kind\":\"b\",\"idempotency_key\":\"x\"}}\n\n{{\"kind\":\"b\",\"idempotency_key\":\"x\"}}\n"
        ),
    );
    let lines = said.lines();
    assert_eq!(statuses(&lines), ["inserted", "inserted", "duplicate"]);
    assert_eq!(lines[0]["id"], A);
    assert_eq!(lines[1]["id"], lines[2]["id"]);
    assert!(said.err.starts_with("2 inserted, 1 duplicate, 0 failed · "), "{}", said.err);
    said.ok();
}

#[test]
fn bad_lines_are_told_and_the_others_go_on() {
    let t = Cli::new();
    let mut text = Vec::new();
    let mut wanted = Vec::new();
    let huge = "q".repeat(10 << 20);
    let over = "x".repeat((1 << 20) + 1);
    for (line, code, message) in [
        (r#"{"kimd":"k"}"#.to_owned(), "invalid", "unknown field `kimd` (did you mean `kind`?)"),
        (r#"{"kind":"k","run_at_ms":-1}"#.into(), "invalid", "run_at_ms -1 is not a whole number within"),
        (
            r#"{"kind":"k","run_at_ms":9007199254740993}"#.into(),
            "invalid",
            "run_at_ms 9007199254740993 is not",
        ),
        (r#"{"kind":"k","run_at_ms":253402300800000}"#.into(), "invalid", "run_at_ms 253402300800000 is not"),
        (
            r#"{"kind":"k","run_at_ms":9223372036854775807}"#.into(),
            "invalid",
            "run_at_ms 9223372036854775807 is not",
        ),
        (r#"{"kind":"k","delay_ms":1e18}"#.into(), "invalid", "delay_ms 1e18 is not"),
        (
            r#"{"kind":"k","delay_ms":1000000000000000000}"#.into(),
            "invalid",
            "delay_ms 1000000000000000000 is not",
        ),
        (r#"{"kind":"k","priority":-1}"#.into(), "invalid", "priority: \"-1\" is not a priority"),
        (
            r#"{"kind":"k","backoff":{"type":"fixed","base_ms":9223372036854775807}}"#.into(),
            "invalid",
            "backoff base_ms 9223372036854775807 ms is over the limit",
        ),
        (r#"{"kind":"a\u0000b"}"#.into(), "invalid", "kind contains NUL"),
        (r#"{"kind":"k","queue":"a\u0000b"}"#.into(), "invalid", "queue contains NUL"),
        (r#"{"kind":"k","expires_at_ms":1}"#.into(), "invalid", "expires_at"),
        (format!(r#"{{"kind":"k","queue":"{huge}"}}"#), "payload_too_large", "the line is over the limit"),
        (
            format!(r#"{{"kind":"k","payload":"{over}"}}"#),
            "payload_too_large",
            "payload of 1048579 bytes is over the limit",
        ),
        ("nonsense".into(), "invalid", "the line is not JSON"),
        (r#"["k"]"#.into(), "invalid", "a list is not a job"),
        ("{\"kind\":\"\u{fffd}".into(), "invalid", "the line ends within the JSON"),
    ] {
        text.extend([line.as_bytes(), b"\n{\"kind\":\"good\"}\n"].concat());
        wanted.push((code, message));
    }
    text.extend(b"{\"kind\":\"\xff\"}\n{\"kind\":\"good\"}\n");
    wanted.push(("invalid", "the line is not UTF-8 (byte 10)"));
    let said = t.feed("push --batch -", text);
    assert_eq!(said.code, Some(1));
    let lines = said.lines();
    assert_eq!(lines.len(), 2 * wanted.len());
    for (i, ((code, message), pair)) in wanted.iter().zip(lines.chunks(2)).enumerate() {
        assert_eq!(
            (&pair[0]["status"], &pair[1]["status"]),
            (&"error".into(), &"inserted".into()),
            "{pair:?}"
        );
        assert_eq!((&pair[0]["line"], &pair[0]["code"]), (&(2 * i + 1).into(), &(*code).into()), "{pair:?}");
        assert!(pair[0]["message"].as_str().unwrap().starts_with(message), "{pair:?}");
    }
    let n = wanted.len();
    assert!(said.err.starts_with(&format!("{n} inserted, 0 duplicate, {n} failed · ")), "{}", said.err);
}

#[test]
fn a_job_that_the_store_refuses_costs_nobody_else() {
    let t = Cli::new();
    t.ok("queue set small max_jobs=1");
    let said = t.feed(
        "push --batch -",
        "{\"kind\":\"k\",\"queue\":\"small\"}\n{\"kind\":\"k\",\"queue\":\"small\"}\n{\"kind\":\"k\",\"delay_ms\":5000,\"expires_at_ms\":1000}\n{\"kind\":\"k\"}\n",
    );
    let lines = said.lines();
    assert_eq!(statuses(&lines), ["inserted", "error", "error", "inserted"]);
    assert_eq!((&lines[1]["code"], &lines[2]["code"]), (&"store_full".into(), &"invalid".into()));
}

#[test]
fn a_receipt_comes_at_once_and_the_job_is_there() {
    let t = Cli::new();
    let mut child = t.command(["push", "--batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for kind in ["a", "b"] {
        writeln!(stdin, "{{\"kind\":\"{kind}\"}}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let receipt: Value = serde_json::from_str(&line).unwrap();
        // Durable before it is told: another process finds it while the first still runs.
        assert_eq!(t.json(&format!("show {}", receipt["id"].as_str().unwrap()))["kind"], kind);
    }
    drop(stdin);
    said(child).ok();
}

#[test]
fn what_is_listed_can_be_pushed_into_another_store() {
    let t = Cli::new();
    let text = "{\"kind\":\"a\",\"payload\":{\"x\":\"\u{e4}\\n\", \"n\":12345678901234567890},\"queue\":\"mail\",\"run_at_ms\":4102444800000,\
        \"priority\":\"low\",\"group\":\"g\",\"concurrency_key\":\"c\",\"unique\":{\"key\":\"u\",\"scope\":{\"window_ms\":90000}},\
        \"max_attempts\":3,\"backoff\":{\"type\":\"fixed\",\"base_ms\":5},\"timeout_ms\":7,\"lease_ms\":2000,\"tags\":[\"t\"],\
        \"headers\":{\"h\":\"v\"},\"expires_at_ms\":4102444800001}\n\
        {\"kind\":\"b\",\"payload_base64\":\"/wA=\",\"content_type\":\"image/x\",\"delay_ms\":3600000}\n\
        {\"kind\":\"c\",\"payload\":\"text\",\"content_type\":\"text/plain\",\"run_at_ms\":4102444800000}\n";
    t.feed("push --batch -", text).ok();
    let listed = t.ok("ls --all -o ndjson");
    assert_eq!(listed.lines().count(), 3);
    let said = t.feed("push --batch - --store sqlite:copy.db", &listed);
    assert_eq!(statuses(&said.lines()), ["inserted"; 3]);
    let strip = |listed: &str| {
        let mut jobs: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for job in &mut jobs {
            job.as_object_mut().unwrap().remove("created_at_ms");
        }
        jobs
    };
    assert_eq!(strip(&listed), strip(&t.ok("ls --all -o ndjson --store sqlite:copy.db")));
    let again = t.feed("push --batch - --store sqlite:copy.db", &listed);
    assert_eq!(statuses(&again.lines()), ["duplicate"; 3], "fed twice, enqueued once");
}

#[test]
fn ten_thousand_lines_of_a_file_keep_their_order() {
    let t = Cli::new();
    let lines: Vec<String> =
        (0..10_000).map(|n| format!("{{\"kind\":\"k\",\"idempotency_key\":\"{n}\"}}\n")).collect();
    std::fs::write(t.path("jobs.ndjson"), lines.concat()).unwrap();
    let first = t.run("push --batch jobs.ndjson");
    assert!(first.err.starts_with("10 000 inserted, 0 duplicate, 0 failed"), "{}", first.err);
    let second = t.run("push --batch jobs.ndjson");
    let ids = |out: &str| out.lines().map(|line| line[..44].to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(&first.out), ids(&second.out));
    assert_eq!(t.json("stats")["waiting"], 10_000);
}

#[test]
fn a_batch_that_is_not_there_is_told() {
    Cli::new().run("push --batch missing.ndjson").fails(
        2,
        "invalid",
        "could not open the batch \"missing.ndjson\"",
    );
}
