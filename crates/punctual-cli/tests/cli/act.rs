//! `cancel`, `reschedule`, `run-now`, `retry`, `reprioritise`, `edit`, `delete`: by ids and by filter.

use crate::fixture::{A, B, C, Cli, masked};

fn push(t: &Cli, id: &str, more: &str) {
    t.ok(&format!("push k --in 2h --id {id} {more}"));
}

fn show(t: &Cli, id: &str) -> serde_json::Value {
    t.json(&format!("show {id}"))
}

#[test]
fn a_job_is_changed_by_its_id() {
    let t = Cli::new();
    push(&t, A, "");
    assert_eq!(t.ok(&format!("reprioritise {A} -p high")), "reprioritised 5c1e9f0a\n");
    assert_eq!(show(&t, A)["priority"], "high");
    assert_eq!(t.ok(&format!("edit {A} --payload [1,2]")), "edited 5c1e9f0a\n");
    assert_eq!(show(&t, A)["payload"], serde_json::json!([1, 2]));
    assert_eq!(t.ok(&format!("reschedule {A} --at 2100-01-01T00:00:00Z")), "rescheduled 5c1e9f0a\n");
    assert_eq!(show(&t, A)["run_at_ms"], 4_102_444_800_000_u64);
    t.ok(&format!("reschedule {A} --by +1h"));
    assert_eq!(show(&t, A)["run_at_ms"], 4_102_448_400_000_u64);
    t.ok(&format!("reschedule {A} --by -30m"));
    assert_eq!(show(&t, A)["run_at_ms"], 4_102_446_600_000_u64);
    t.ok(&format!("reschedule {A} --in 90s"));
    // Some seconds may have passed.
    assert!(masked(&t.ok(&format!("show {A}"))).contains("in 1m "));
    assert_eq!(t.ok(&format!("run-now {A}")), "due now 5c1e9f0a\n");
    assert_eq!(show(&t, A)["status"], "ready");
    assert_eq!(t.ok(&format!("cancel {A} --reason enough")), "cancelled 5c1e9f0a\n");
    assert_eq!((&show(&t, A)["state"], &show(&t, A)["reason"]), (&"cancelled".into(), &"enough".into()));
    assert_eq!(t.ok(&format!("retry {A}")), "retried 5c1e9f0a\n");
    assert_eq!(show(&t, A)["status"], "ready");
    assert_eq!(t.ok(&format!("delete {A}")), "deleted 5c1e9f0a\n");
    t.run(&format!("show {A}")).fails(3, "not_found", "");
}

#[test]
fn the_wrong_state_is_told_with_a_way_out() {
    let t = Cli::new();
    push(&t, A, "");
    t.run(&format!("retry {A}")).fails(4, "wrong_state", "job 5c1e9f0a is waiting and cannot be retried");
    t.ok(&format!("cancel {A}"));
    let said = t.run(&format!("reschedule {A} --in 1h"));
    assert!(said.err.contains(&format!("  try   punctual retry {A}")), "{}", said.err);
    said.fails(4, "wrong_state", "job 5c1e9f0a is cancelled and cannot be rescheduled");
    t.run(&format!("cancel {A}")).fails(
        4,
        "wrong_state",
        "job 5c1e9f0a is cancelled and cannot be cancelled",
    );
}

#[test]
fn a_unique_key_that_went_to_another_job_stops_a_retry() {
    let t = Cli::new();
    push(&t, A, "--unique u");
    t.ok(&format!("cancel {A}"));
    push(&t, B, "--unique u");
    t.run(&format!("retry {A}")).fails(4, "unique_conflict", "job 5c1e9f0a cannot be retried");
}

#[test]
fn of_many_ids_each_is_answered() {
    let t = Cli::new();
    push(&t, A, "");
    push(&t, C, "");
    let said = t.run(&format!("cancel {A} {B} {C}"));
    assert_eq!((said.code, said.out.as_str()), (Some(3), "cancelled 5c1e9f0a\ncancelled 5c1e9f0c\n"));
    let said = t.run(&format!("retry {A} {B} --json"));
    assert_eq!(
        said.out,
        format!(
            "[{{\"id\":\"{A}\",\"status\":\"done\",\"state\":\"waiting\"}},{{\"id\":\"{B}\",\"status\":\"not_found\"}}]\n"
        ),
        "one value"
    );
    let error: serde_json::Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!((&error["error"]["code"], &error["error"]["exit"]), (&"not_found".into(), &3.into()));
    assert_eq!(t.run(&format!("cancel {A} {C} -o ndjson")).out.lines().count(), 2);
}

#[test]
fn a_filter_acts_on_all_that_match_after_a_preview() {
    let t = Cli::new();
    t.feed("push --batch -", "{\"kind\":\"a\"}\n".repeat(1_500) + "{\"kind\":\"b\"}\n").ok();
    let preview = t.args(&["cancel", "--where", "kind:a", "--dry-run"]).ok();
    assert_eq!(preview, "would cancel 1 500 jobs; searched 1 501 of 1 501. Run again without --dry-run.\n");
    assert_eq!(t.json("stats")["waiting"], 1_501);
    t.args(&["cancel", "--where", "kind:a"]).fails(
        2,
        "invalid",
        "will not cancel 1 500 jobs that match \"kind:a\" without confirmation",
    );
    let said = t.args(&["cancel", "--where", "kind:a", "-y"]).ok();
    assert!(said.starts_with("cancelled 1 500 of 1 500 jobs · 0 skipped ("), "{said}");
    assert_eq!(
        t.args(&["cancel", "--where", "-kind:a", "--dry-run"]).ok().split(';').next(),
        Some("would cancel 1 job")
    );
    // What can be undone is not asked about.
    let said = t.args(&["retry", "--where", "state:cancelled", "--json"]).ok();
    assert_eq!(said, "{\"action\":\"retry\",\"dry_run\":false,\"matched\":1500,\"done\":1500,\"skipped\":0,\"searched\":1500,\"total\":1501}\n".replace("\"searched\":1500", &searched(&said)));
    let stats = t.json("stats");
    assert_eq!((&stats["waiting"], &stats["cancelled"]), (&1_501.into(), &0.into()));
}

/// How much a store looks at is its own affair.
fn searched(said: &str) -> String {
    let at = said.find("\"searched\"").unwrap();
    said[at..].split(',').next().unwrap().to_owned()
}

#[test]
fn a_dry_run_by_id_changes_nothing() {
    let t = Cli::new();
    push(&t, A, "");
    assert_eq!(t.ok(&format!("delete {A} --dry-run")), "would delete 5c1e9f0a, scheduled\n");
    assert_eq!(show(&t, A)["status"], "scheduled");
    t.run(&format!("delete {B} --dry-run")).fails(3, "not_found", "");
}

#[test]
fn ids_and_a_filter_are_one_too_many() {
    let t = Cli::new();
    t.args(&["cancel", A, "--where", "kind:a"]).is_usage("cannot be used with");
}

#[test]
fn an_empty_filter_means_no_job() {
    let t = Cli::new();
    push(&t, A, "");
    for line in [
        "cancel",
        "retry",
        "run-now",
        "delete",
        "reschedule --in 1h",
        "reprioritise -p low",
        "edit --payload 1",
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--where", " ", "-y"]).collect();
        t.args(&words).fails(2, "invalid", "the filter is empty, and would match every job");
    }
    assert_eq!(show(&t, A)["priority"], "normal");
    t.ok("run-now --all --dry-run");
    t.run("run-now --all").fails(2, "invalid", "will not run-now 1 job of the store without confirmation");
    t.ok("run-now --all -y");
    assert_eq!(show(&t, A)["status"], "ready");
}

#[test]
fn jobs_that_are_done_run_again_only_if_that_is_meant() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    t.ok("take");
    push(&t, B, "");
    t.ok(&format!("cancel {B}"));
    t.args(&["retry", "--where", "kind:k"]).fails(
        2,
        "invalid",
        "will not retry 2 jobs that match \"kind:k\" (1 already done) without confirmation",
    );
    assert_eq!(show(&t, A)["state"], "done");
    t.args(&["retry", "--where", "kind:k -state:done"]).ok();
    assert_eq!((&show(&t, A)["state"], &show(&t, B)["state"]), (&"done".into(), &"waiting".into()));
    t.args(&["retry", "--where", "kind:k", "-y"]).ok();
    assert_eq!(show(&t, A)["state"], "waiting");
}
