//! `queue ls|show|set|limit|pause|resume|purge`.

use std::process::Child;

use crate::fixture::{A, Cli, masked, said};

#[test]
fn queues_are_listed_with_their_counts() {
    let t = Cli::new();
    t.ok("push k -q mail --in 30m");
    t.ok("push k -q mail --in 2h");
    t.ok(&format!("push k -q bulk --in 1h --id {A}"));
    t.ok(&format!("cancel {A}"));
    t.ok("queue pause mail");
    assert_eq!(
        t.ok("queue ls"),
        "QUEUE  DUE  DUE≤1H  WAITING  RUNNING  RETRYING  DEAD  DONE  CANCELLED  OLDEST DUE  OLDEST BLOCKED  PAUSED\n\
         bulk     0       0        0        0         0     0     0          1\n\
         mail     0       1        2        0         0     0     0          0                              by ana\n"
    );
    assert_eq!(t.ok("queue ls -o ids"), "bulk\nmail\n");
    let json = t.json("queue ls");
    assert_eq!((&json[1]["name"], &json[1]["counts"]["waiting"]), (&"mail".into(), &2.into()));
    assert_eq!(t.ok("queue ls -o ndjson").lines().count(), 2);
}

#[test]
fn a_limited_queue_starts_no_more_than_may() {
    let t = Cli::new();
    let text = t.ok("queue limit mail --concurrency 5 --rate 1/1h");
    assert!(text.contains("limits    concurrency 5, rate 1/1h\n"), "{text}");
    t.ok("push k -q mail");
    t.ok(&format!("push k -q mail --id {A}"));
    assert_eq!(t.ok("take -q mail -n 9 -o ids").lines().count(), 1);
    assert_eq!(t.ok("ls state:blocked -o ids").trim(), A);
    let why = masked(&t.ok(&format!("why {A}")));
    assert!(why.starts_with("blocked: queue mail starts nothing until TIME (in "), "{why}");
    assert!(t.ok("queue limit mail").contains("rate 1/1h; nothing starts until in "));
    let text = t.ok("queue limit mail --concurrency none --rate 600/1m --burst 3");
    assert!(text.contains("limits    concurrency none, rate 600/1m burst 3\n"), "{text}");
    assert_eq!(t.ok("take -q mail -n 9 -o ids").trim(), A);
    t.run("queue limit mail --rate 5").fails(2, "invalid", "\"5\" is not a value of rate");
    t.run("queue limit mail --concurrency 0").fails(2, "invalid", "concurrency 0 is not within 1 to 1000000");
}

#[test]
fn groups_have_limits() {
    let t = Cli::new();
    let text = t.ok("queue limit mail --groups --concurrency 2 --rate 10/1s --burst 3");
    assert!(text.contains("groups    each concurrency 2, rate 10/1s burst 3\n"), "{text}");
    let text = t.ok("queue limit mail --group acme.com --weight 5 --concurrency 1");
    assert!(text.contains("limits    concurrency none, rate none\n"), "the queue itself has none: {text}");
    assert!(text.contains("group     acme.com: weight 5, concurrency 1\n"), "{text}");
    assert_eq!(t.ok("queue limit mail"), t.ok("queue show mail"));
    t.ok("queue set mail groups.b=c.weight=2 groups.acme.com.rate=1/1m group.rate=none group.weight=3");
    let settings = &t.json("queue show mail")["settings"];
    assert_eq!(settings["group"], serde_json::json!({ "weight": 3, "concurrency": 2 }));
    let acme = serde_json::json!({
        "weight": 5, "concurrency": 1, "rate": { "max": 1, "period_ms": 60_000, "burst": 1 }
    });
    assert_eq!(settings["groups"], serde_json::json!({ "acme.com": acme, "b=c": { "weight": 2 } }));
    assert!(t.ok("queue show mail --fields name,settings.groups").contains("acme.com"));
    // They go with the other settings.
    let file = t.ok("queue show mail --json");
    t.feed("queue set --from - --store sqlite:copy.db", &file).ok();
    assert_eq!(&t.json("queue show mail --store sqlite:copy.db")["settings"], settings);
    t.ok("queue limit mail --group acme.com --weight none --concurrency none --rate none");
    assert_eq!(
        t.json("queue show mail")["settings"]["groups"],
        serde_json::json!({ "b=c": { "weight": 2 } })
    );
    for (line, why) in [
        ("queue limit mail --group a --weight 0", "group \"a\": weight 0 is not within 1 to 100"),
        ("queue limit mail --groups --weight 101", "weight 101 is not within 1 to 100"),
        ("queue limit mail --groups --rate 5", "\"5\" is not a value of group.rate"),
        ("queue set mail groups.a.wait=1", "unknown setting `groups.a.wait`"),
    ] {
        t.run(line).fails(2, "invalid", why);
    }
    assert_eq!(t.run("queue limit mail --weight 2").code, Some(2), "a weight is that of a group");
    assert_eq!(t.run("queue limit mail --group a --groups").code, Some(2));
}

#[test]
fn many_groups_are_cut_short_for_people() {
    let t = Cli::new();
    let groups: Vec<String> = (0..23).map(|n| format!("groups.customer{n:02}.weight=2")).collect();
    let text = t.ok(&format!("queue set mail {}", groups.join(" ")));
    assert!(text.contains("customer19: weight 2\n") && !text.contains("customer20"), "{text}");
    assert!(text.contains("group     … and 3 more: punctual queue show mail --json\n"), "{text}");
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
            "placement=pinned",
            "max_jobs=2",
            "retention.done.age=1h",
            "retention.dead.count=7",
            "defaults.max_attempts=3",
            "defaults.backoff=fixed 30s",
        ])
        .ok();
    assert!(
        text.contains("order     lifo\n")
            && text.contains("placement pinned\n")
            && text.contains("caps      max_jobs 2, max_bytes none\n")
            && text.contains("limits    concurrency none, rate none\n"),
        "{text}"
    );
    t.ok("queue set mail defaults.priority=low");
    t.ok(&format!("push k -q mail --in 1h --id {A}"));
    let job = t.json(&format!("show {A}"));
    assert_eq!((&job["max_attempts"], &job["priority"]), (&3.into(), &"low".into()), "both settings hold");
    t.ok("push k -q mail --in 1h");
    t.run("push k -q mail").fails(5, "store_full", "queue \"mail\" is full");
    let settings = &t.json("queue show mail")["settings"];
    assert_eq!(
        (&settings["order"], &settings["placement"], &settings["done"]["age_ms"], &settings["dead"]["count"]),
        (&"lifo".into(), &"pinned".into(), &3_600_000.into(), &7.into())
    );
    t.ok("queue set mail max_jobs=none placement=spread");
    t.ok("push k -q mail");
    t.run("queue set mail defaults.lease=1ms").fails(2, "invalid", "lease_ms 1 is not within");
}

#[test]
fn settings_go_from_one_store_to_another_by_a_file() {
    let t = Cli::new();
    t.args(&["queue", "set", "mail", "order=lifo", "max_jobs=2", "defaults.backoff=fixed 30s"]).ok();
    t.ok("queue set bulk retention.dead.age=7d");
    t.ok("queue pause bulk");
    t.ok("push k -q bulk");
    let settings = |queues: &serde_json::Value| {
        queues.as_array().unwrap().iter().map(|queue| queue["settings"].clone()).collect::<Vec<_>>()
    };
    let listed = t.ok("queue ls --json");
    std::fs::write(t.path("queues.json"), &listed).unwrap();
    let said = t.ok("queue set --from queues.json --store sqlite:copy.db");
    assert!(said.starts_with("bulk\n  jobs ") && said.contains("\nmail\n  jobs "), "{said}");
    let mut wanted = settings(&t.json("queue ls"));
    wanted[0].as_object_mut().unwrap().remove("paused");
    assert_eq!(settings(&t.json("queue ls --store sqlite:copy.db")), wanted, "a pause stays where it is");

    // Replaced as a whole: what the file doesn't say is as in a new queue.
    let line = r#"{"name":"mail","settings":{"max_jobs":9}}"#;
    let said = t.feed("queue set --from - --json", line).ok();
    let mail: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&mail["settings"]["max_jobs"], &mail["settings"]["order"]), (&9.into(), &"fifo".into()));
    t.ok("queue pause mail");
    t.feed("queue set --from -", line).ok();
    assert!(t.ok("queue show mail").starts_with("mail  paused by ana"));
}

#[test]
fn a_file_of_settings_is_applied_as_a_whole_or_not_at_all() {
    let t = Cli::new();
    let good = r#"{"name":"mail","settings":{}}"#;
    for (bad, message) in [
        (
            r#"{"name":"b","settings":{"max_job":1}}"#,
            "queue \"b\": unknown field `max_job`        did you mean `max_jobs`?",
        ),
        (r#"{"name":"b","settings":{"order":"up"}}"#, "queue \"b\": unknown variant `up`"),
        (r#"{"name":"$b","settings":{}}"#, "queue \"$b\" is reserved"),
        (good, "queue \"mail\" is in the file twice"),
    ] {
        t.feed("queue set --from -", format!("{good}\n{bad}\n")).fails(2, "invalid", message);
        assert_eq!(t.ok("queue ls -o ids"), "", "{bad}");
    }
    t.run("queue set --from missing.json").fails(
        2,
        "invalid",
        "could not read the settings from \"missing.json\"",
    );
    t.run("queue set mail --from -").is_usage("cannot be used with");
    t.run("queue set mail").is_usage("SETTINGS");
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
        "will not delete 1 200 waiting jobs of queue mail without confirmation",
    );
    assert_eq!(t.ok("queue purge mail -y"), "deleted 1 200 waiting jobs of queue mail\n");
    assert_eq!(t.ok("ls -o ids"), format!("{A}\n"));
}

/// How many calls change settings at once.
const SETTERS: u32 = 20;

/// Each of many processes gives a group of its own a limit, all at once; answers whose limits are kept.
pub(crate) fn groups_set_at_once(t: &Cli, store: &str) -> usize {
    let setters: Vec<Child> = (0..SETTERS)
        .map(|n| {
            let line = format!("queue limit mail --group g{n} --concurrency 3 --store {store}");
            t.command(line.split(' ')).spawn().unwrap()
        })
        .collect();
    for setter in setters {
        said(setter).ok();
    }
    let settings = &t.json(&format!("queue show mail --store {store}"))["settings"];
    settings["groups"].as_object().map_or(0, serde_json::Map::len)
}

#[test]
fn settings_of_many_processes_are_all_kept() {
    let t = Cli::new();
    t.ok("queue set mail order=fifo --store sqlite:punctual.db");
    assert_eq!(groups_set_at_once(&t, "sqlite:punctual.db"), SETTERS as usize);
}

#[test]
fn what_is_no_setting_makes_no_queue() {
    let t = Cli::new();
    t.ok("queue set other order=fifo");
    t.run("queue set mail ordr=lifo").fails(2, "invalid", "");
    assert_eq!(t.ok("queue ls -o ids"), "other\n");
}

#[test]
fn a_queue_that_waits_for_a_pause_is_opened() {
    let t = Cli::new();
    t.ok("queue set mail order=fifo");
    t.run("queue open nails").fails(3, "queue_unknown", "there is no queue \"nails\"");
    assert_eq!(t.ok("queue open mail"), "opened mail\n");
    assert_eq!(t.json("queue open mail --group g")["name"], "mail");
}
