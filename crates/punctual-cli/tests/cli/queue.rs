//! `queue ls|show|set|pause|resume|purge`.

use crate::fixture::{A, Cli, masked};

#[test]
fn queues_are_listed_with_their_counts() {
    let t = Cli::new();
    t.ok("push k -q mail --in 1h");
    t.ok(&format!("push k -q bulk --in 1h --id {A}"));
    t.ok(&format!("cancel {A}"));
    t.ok("queue pause mail");
    assert_eq!(
        t.ok("queue ls"),
        "QUEUE  DUE  WAITING  RETRYING  RUNNING  DONE  DEAD  CANCELLED  OLDEST DUE  PAUSED\n\
         bulk     0        0         0        0     0     0          1\n\
         mail     0        1         0        0     0     0          0              by ana\n"
    );
    assert_eq!(t.ok("queue ls -o ids"), "bulk\nmail\n");
    let json = t.json("queue ls");
    assert_eq!((&json[1]["name"], &json[1]["counts"]["waiting"]), (&"mail".into(), &1.into()));
    assert_eq!(t.ok("queue ls -o ndjson").lines().count(), 2);
}

#[test]
fn a_paused_queue_gives_nothing_until_it_is_resumed() {
    let t = Cli::new();
    t.ok("push k -q mail");
    assert_eq!(t.args(&["queue", "pause", "mail", "--reason", "smtp", "--by", "bo"]).ok(), "paused mail\n");
    assert_eq!(t.ok("take -q mail -o ids"), "");
    assert!(masked(&t.ok("queue show mail")).starts_with("mail  paused by bo, "));
    assert_eq!(t.ok("queue resume mail"), "resumed mail\n");
    assert_eq!(t.ok("take -q mail -o ids").lines().count(), 1);
}

#[test]
fn settings_are_kept_and_applied() {
    let t = Cli::new();
    let text = t
        .args(&[
            "queue",
            "set",
            "mail",
            "order=lifo",
            "max_jobs=2",
            "retention.done.age=1h",
            "retention.dead.count=7",
            "defaults.max_attempts=3",
            "defaults.backoff=fixed 30s",
        ])
        .ok();
    assert!(
        text.contains("order     lifo\n") && text.contains("caps      max_jobs 2, max_bytes none\n"),
        "{text}"
    );
    t.ok("queue set mail defaults.priority=low");
    t.ok(&format!("push k -q mail --in 1h --id {A}"));
    let job = t.json(&format!("show {A}"));
    assert_eq!((&job["max_attempts"], &job["priority"]), (&3.into(), &"low".into()), "both settings hold");
    t.ok("push k -q mail --in 1h");
    t.run("push k -q mail").fails(5, "store_full", "queue \"mail\" is at its cap");
    let settings = &t.json("queue show mail")["settings"];
    assert_eq!(
        (&settings["order"], &settings["done"]["age_ms"], &settings["dead"]["count"]),
        (&"lifo".into(), &3_600_000.into(), &7.into())
    );
    t.ok("queue set mail max_jobs=none");
    t.ok("push k -q mail");
    t.run("queue set mail defaults.lease=1ms").fails(2, "invalid", "lease_ms 1 is not within");
}

#[test]
fn a_purge_deletes_what_waits() {
    let t = Cli::new();
    t.feed("push --batch -", "{\"kind\":\"k\",\"queue\":\"mail\"}\n".repeat(1_200)).ok();
    t.ok(&format!("push k -q other --id {A}"));
    assert_eq!(t.ok("queue purge mail --dry-run"), "would delete 1 200 waiting jobs of queue mail\n");
    t.run("queue purge mail").fails(
        2,
        "invalid",
        "refusing to delete 1 200 waiting jobs of queue mail unasked",
    );
    assert_eq!(t.ok("queue purge mail -y"), "deleted 1 200 waiting jobs of queue mail\n");
    assert_eq!(t.ok("ls -o ids"), format!("{A}\n"));
}
