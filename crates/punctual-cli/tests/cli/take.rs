//! `take`: what is printed is done.

use crate::fixture::{A, B, C, Cli, said};

#[test]
fn due_jobs_are_taken_in_order_and_are_done() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A} -p low"));
    t.ok(&format!("push k --id {B}"));
    t.ok(&format!("push k --id {C} --in 1h"));
    assert_eq!(t.ok("take -o ids"), format!("{B}\n"));
    let said = t.run("take -n 5 -o ndjson");
    assert_eq!(said.err, "1 job taken\n");
    assert_eq!((&said.lines()[0]["id"], &said.lines()[0]["state"]), (&A.into(), &"done".into()));
    assert_eq!(t.json("take -n 5")["jobs"], serde_json::json!([]));
    assert_eq!(t.json(&format!("show {A}"))["status"], "done");
}

#[test]
fn only_jobs_that_have_been_due_for_a_while_are_taken() {
    let t = Cli::new();
    t.ok(&format!("push k --id {A}"));
    assert_eq!(t.ok("take --older-than 1h -o ids"), "");
    assert_eq!(t.ok("take -q other -o ids"), "");
}

#[test]
fn more_than_a_batch_can_be_taken() {
    let t = Cli::new();
    t.feed("push --batch -", "{\"kind\":\"k\"}\n".repeat(2_300)).ok();
    assert_eq!(t.ok("take -n 2200 -o ids").lines().count(), 2_200);
    assert_eq!(t.json("stats")["waiting"], 100);
}

#[test]
fn nothing_is_taken_that_nobody_reads() {
    let t = Cli::new();
    t.feed("push --batch -", "{\"kind\":\"k\"}\n".repeat(500)).ok();
    for format in ["ids", "ndjson", "human"] {
        let before = t.json("stats")["waiting"].as_u64().unwrap();
        let mut child = t.command(["take", "-n", "500", "-o", format]).spawn().unwrap();
        drop(child.stdout.take());
        let said = said(child);
        let taken = before - t.json("stats")["waiting"].as_u64().unwrap();
        assert_eq!(said.code, Some(1), "{taken} taken: {said:#?}");
        assert!(taken <= 64, "{taken} taken for nobody");
        assert!(said.err.contains("the reader of stdout went away"), "{said:#?}");
    }
}

/// Whatever was taken and could not be printed is named, so that it can be run after all.
#[cfg(target_os = "linux")]
#[test]
fn what_was_taken_and_not_printed_is_named() {
    let t = Cli::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for id in [A, B, C] {
        let pushed =
            said(t.command(["push", "k", "--id", id]).stdout(full.try_clone().unwrap()).spawn().unwrap());
        pushed.fails(1, "failed", "the output could not be printed completely");
        assert!(pushed.err.contains("remains done"), "{pushed:#?}");
    }
    let said = said(t.command(["take", "-n", "3", "-o", "ids"]).stdout(full).spawn().unwrap());
    assert_eq!(said.code, Some(1), "{said:#?}");
    for id in [A, B, C] {
        assert!(said.err.contains(id), "{id} is lost: {said:#?}");
    }
    assert!(said.err.contains("No space left on device"), "{said:#?}");
}
