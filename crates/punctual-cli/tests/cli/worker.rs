//! `worker ls|quiet|resume|stop`.

use crate::{
    exec::Worker,
    fixture::{Cli, wait},
};

#[test]
fn workers_are_listed_and_ordered() {
    let t = Cli::new();
    t.ok("push k -q mail");
    assert_eq!(t.ok("worker ls --json"), "[]\n");
    let worker = Worker::start(
        &t,
        "sleep 30",
        "-q mail --weighted -q bulk=3 --name one --grace 100ms --kill-after 100ms",
    );
    let first = wait(
        || t.json("worker ls").as_array().unwrap().first().cloned(),
        || "the worker is not registered".to_owned(),
    );
    let (id, name) = (first["id"].as_str().unwrap().to_owned(), &first["name"]);
    assert_eq!((name, &first["state"], &first["slots"]), (&"one".into(), &"working".into(), &8.into()));
    assert_eq!(first["queues"][1], serde_json::json!({"name": "bulk", "weight": 3}));
    let table = t.ok("workers ls");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..4], ["WORKER", "STATE", "BUSY", "QUEUES"]);
    assert_eq!(lines[1][..2], ["one", "working"]);
    assert_eq!(t.ok("worker ls -o ids"), format!("{id}\n"));
    assert_eq!(t.ok(&format!("worker quiet {id}")), "ordered quiet  worker one\n");
    assert_eq!(t.json("worker stop one")["order"], "stop");
    // It finds the last order, ends its command after the grace period, and leaves.
    worker.said().ok();
    assert_eq!(t.ok("worker ls --json"), "[]\n");
    t.run("worker stop one").fails(3, "not_found", "there is no worker \"one\"");
    t.run(&format!("worker stop {id}")).fails(3, "not_found", "there is no worker");
}
