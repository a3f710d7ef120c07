//! `worker ls|quiet|resume|stop`.

use crate::{
    exec::Worker,
    fixture::{Cli, wait},
    serve::Served,
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

/// A token for the queue of a worker is enough to register it through a server.
#[test]
fn a_worker_behind_a_server_registers_itself_with_the_token_of_its_queue() {
    let served = Served::start(Cli::new(), "");
    let token = served.token("--role operate --queue mail");
    let folder = Cli::new();
    std::fs::write(folder.path("token"), token).unwrap();
    let front = Cli::with_store(&format!("{}?token_file={}", served.url, folder.path("token").display()));
    // Until then the server believes that there are no tokens.
    let open = Cli::with_store(&served.url);
    wait(|| (open.run("stats").code != Some(0)).then_some(()), || "no token is needed".to_owned());
    let worker = Worker::start(&front, "true", "-q mail --name one");
    let listed = || served.behind("worker ls");
    wait(|| listed().contains("one").then_some(()), listed);
    worker.stop().ok();
    assert_eq!(served.behind("worker ls --json"), "[]\n");
}
