//! `take`: what is printed is done.

use crate::fixture::{A, B, C, Cli};

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
