//! `compact`: the file of a store gives space back to the disk.

use crate::fixture::{A, Cli};

/// Lines for `push --batch`, of so many bytes each.
fn lines(queue: &str, n: usize, bytes: usize) -> String {
    let payload = "x".repeat(bytes);
    format!("{{\"kind\":\"k\",\"queue\":\"{queue}\",\"payload\":\"{payload}\"}}\n").repeat(n)
}

#[test]
fn the_file_gives_the_space_of_purged_jobs_back_and_says_how_much() {
    let t = Cli::new();
    t.feed("push --batch -", lines("gone", 2_000, 1_000)).ok();
    t.ok(&format!("push k --id {A}"));
    t.ok("queue purge gone -y");
    let size = || std::fs::metadata(t.path("punctual.db")).unwrap().len();
    let before = size();
    assert!(1 << 20 < before, "{before} bytes");

    let answer = t.json("compact");
    let after = size();
    assert!(after < before / 4, "{before} bytes before, {after} after");
    assert_eq!(answer["after"]["file_bytes"], after);
    assert_eq!(answer["after"]["log_bytes"], 0);
    assert_eq!(answer["after"]["free_bytes"], 0);
    assert!(answer["before"]["used_bytes"].as_u64() < answer["before"]["free_bytes"].as_u64(), "{answer}");
    assert!(answer["took_ms"].is_u64(), "{answer}");
    assert_eq!(t.json(&format!("show {A}"))["status"], "ready");
    assert!(t.ok("audit").starts_with("ok"));

    let said = t.ok("compact");
    assert!(said.contains(" KiB before, ") && said.contains(" KiB after, in "), "{said}");
}

#[test]
fn the_doctor_says_when_a_compaction_would_give_much_back() {
    let t = Cli::new();
    t.feed("push --batch -", lines("gone", 400, 60_000)).ok();
    assert!(!t.ok("doctor").contains("punctual compact"));
    t.ok("queue purge gone -y");
    let said = t.ok("doctor");
    assert!(said.contains("run `punctual compact` to return them"), "{said}");
}

#[test]
fn what_is_no_file_or_is_not_there_is_not_compacted() {
    let t = Cli::new();
    let refused = t.run("compact --store redis://localhost:1");
    refused.fails(2, "unsupported", "only a store in an SQLite file can be compacted");
    t.run("compact").fails(5, "store_unavailable", "there is no store at punctual.db");
    assert!(!t.path("punctual.db").exists());
    t.ok("push k");
    t.run("compact --store sqlite:punctual.db?mode=ro").fails(2, "unsupported", "");
}
