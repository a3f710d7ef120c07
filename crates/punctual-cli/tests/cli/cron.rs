//! `cron ls|show|set|rm|pause|resume|fire|next`.

use crate::fixture::{Cli, said, wait};

/// A store with a schedule that ticks every night.
fn nightly() -> Cli {
    let t = Cli::new();
    let set = ["cron", "set", "nightly", "30 2 * * *", "report.build", r#"{"of":"sales"}"#, "-q", "reports"];
    let said = t.args(&[&set[..], &["--tz", "Europe/Berlin", "--max-attempts", "3"]].concat()).ok();
    assert!(said.starts_with("set nightly  next 2") && said.contains(" 02:30:00 CE"), "{said}");
    t
}

#[test]
fn a_schedule_is_set_and_shown() {
    let t = nightly();
    let view = t.json("cron show nightly");
    assert_eq!(
        view["ticks"],
        serde_json::json!({"cron": "30 2 * * *", "tz": "Europe/Berlin", "misfire": "run_once"})
    );
    assert_eq!(
        (&view["job"]["queue"], &view["job"]["options"]["max_attempts"]),
        (&"reports".into(), &3.into())
    );
    let tick = &t.json("ls state:waiting")["jobs"][0];
    assert_eq!((&tick["kind"], &tick["run_at_ms"]), (&"report.build".into(), &view["next_at_ms"]));
    assert_eq!(tick["headers"]["scheduled_for"], view["next_at_ms"].to_string());
    let shown = t.ok("cron show nightly");
    assert!(shown.starts_with("nightly\n  ticks    30 2 * * * Europe/Berlin: At 02:30.\n"), "{shown}");
    assert_eq!(t.ok("cron ls -o ids"), "nightly\n");
    let lines: Vec<String> = t.ok("cron ls").lines().map(str::to_owned).collect();
    assert!(
        lines[0].starts_with("SCHEDULE  TICKS  ") && lines[1].contains("  report.build  reports  run-once"),
        "{lines:?}"
    );
    // Set again, it is changed; the tick that waits with it.
    let said =
        t.args(&["cron", "set", "nightly", "@every 1h", "other", "--misfire", "run-all:7", "--json"]).ok();
    let changed: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        changed["ticks"],
        serde_json::json!({"every_ms": 3_600_000, "misfire": {"run_all": {"at_most": 7}}})
    );
    assert_eq!(t.json("ls state:waiting")["jobs"].as_array().unwrap().len(), 1);
}

/// What is listed is the tick that waits, not what the expression says.
#[test]
fn a_schedule_is_listed_with_the_tick_that_waits() {
    let t = nightly();
    let tick = t.json("ls state:waiting")["jobs"][0]["id"].as_str().unwrap().to_owned();
    t.ok(&format!("reschedule {tick} --at +49h"));
    let moved = t.json("ls state:waiting")["jobs"][0]["run_at_ms"].take();
    assert_eq!(t.json("cron ls")[0]["next_at_ms"], moved);
    assert_eq!(t.json("cron show nightly")["next_at_ms"], moved);
    assert!(t.ok("cron ls").contains("  in 2d"), "{}", t.ok("cron ls"));
    t.ok(&format!("cancel {tick}"));
    assert_eq!(t.json("cron ls")[0].get("next_at_ms"), None);
    assert!(t.ok("cron ls").contains("  no tick waiting  "), "{}", t.ok("cron ls"));
}

#[test]
fn a_schedule_is_paused_fired_and_removed() {
    let t = nightly();
    assert_eq!(t.args(&["cron", "pause", "nightly", "--reason", "holidays"]).ok(), "paused nightly\n");
    assert!(t.ok("cron show nightly").starts_with("nightly  paused by ana, "));
    assert_eq!(t.json("ls state:waiting")["jobs"], serde_json::json!([]));
    assert!(t.ok("cron fire nightly").starts_with("fired nightly  job "));
    assert_eq!(t.json("ls state:waiting")["jobs"][0]["status"], "ready");
    assert!(t.ok("cron resume nightly").starts_with("resumed nightly  next 2"));
    assert_eq!(t.json("ls state:waiting")["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(t.ok("cron rm nightly"), "removed nightly\n");
    assert_eq!(
        (t.ok("cron ls --json"), t.json("ls state:waiting")["jobs"].as_array().unwrap().len()),
        ("[]\n".to_owned(), 1)
    );
}

#[test]
fn the_next_ticks_of_any_expression_need_no_store() {
    let t = Cli::new();
    let said = t.args(&["cron", "next", "--of", "0 12 29 FEB *", "--tz", "utc", "-n", "2", "--explain"]).ok();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].starts_with("0 12 29 FEB * UTC: At 12:00"), "{said}");
    assert!(lines[1].contains("-02-29 12:00:00 UTC   in "), "{said}");
    // Within 500 days the clocks of New York show that hour twice at least once.
    let args = [
        "cron",
        "next",
        "--of",
        "*/30 1 * * *",
        "--tz",
        "America/New_York",
        "-n",
        "1000",
        "--explain",
        "--json",
    ];
    let ticks: serde_json::Value = serde_json::from_str(&t.args(&args).ok()).unwrap();
    let notes: Vec<&str> =
        ticks.as_array().unwrap().iter().filter_map(|tick| tick["note"].as_str()).collect();
    assert!(notes.iter().filter(|note| note.ends_with("the second")).count() >= 2, "{notes:?}");
    assert!(!t.path("punctual.db").exists());
}

/// A file of a time zone with the rules of Berlin.
fn rules_of_berlin() -> Vec<u8> {
    let header = |version: u8| {
        let mut bytes = b"TZif".to_vec();
        bytes.push(version);
        bytes.extend([0; 15]);
        // One type of local time, and its abbreviation.
        bytes.extend([0_u32, 0, 0, 0, 1, 4].map(u32::to_be_bytes).concat());
        bytes.extend(3_600_i32.to_be_bytes());
        bytes.extend(b"\0\0CET\0");
        bytes
    };
    [header(b'2'), header(b'2'), b"\nCET-1CEST,M3.5.0,M10.5.0/3\n".to_vec()].concat()
}

/// In a container with a mounted `/etc/localtime`, the zone of the machine has the name of the image's and the host's rules.
#[test]
fn a_zone_whose_rules_are_not_those_of_its_name_is_not_stored() {
    let t = Cli::new();
    for name in ["Etc/UTC", "Europe/Berlin"] {
        let file = t.path("zones").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, rules_of_berlin()).unwrap();
    }
    let run = |zone: &str, args: &[&str]| {
        let mut command = t.command(args);
        command.env_remove("PUNCTUAL_TZ").env("TZDIR", t.path("zones")).env("TZ", zone);
        said(command.spawn().unwrap())
    };
    let set = ["cron", "set", "nightly", "0 3 * * *", "k"];
    for args in [&set[..], &["cron", "next", "--of", "0 3 * * *"]] {
        let refused = run("Etc/UTC", args);
        assert_eq!(refused.code, Some(2), "{args:?}: {} {}", refused.out, refused.err);
        assert!(
            refused.err.contains("Etc/UTC") && refused.err.contains("--tz Europe/Berlin"),
            "{}",
            refused.err
        );
    }
    assert_eq!(run("Etc/UTC", &["cron", "ls", "-o", "ids"]).out, "");
    assert!(run("Europe/Berlin", &set).ok().contains(" 03:00:00 CE"));
    // A zone that is named is the one of this name.
    let named = run("Etc/UTC", &[&set[..], &["--tz", "Etc/UTC"]].concat()).ok();
    assert!(named.contains(" 03:00:00 UTC "), "{named}");
}

#[test]
fn day_fields_and_names_mean_what_they_mean_elsewhere() {
    let t = Cli::new();
    let said = t.args(&["cron", "next", "--of", "0 0 */2 * 1", "--tz", "utc", "-n", "12", "--json"]).ok();
    let ticks: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap();
    let is_both = |tick: &serde_json::Value| {
        let days = tick["at_ms"].as_u64().unwrap() / 86_400_000;
        let day_of_month: u8 = tick["at"].as_str().unwrap()[8..10].parse().unwrap();
        days % 7 == 4 && day_of_month % 2 == 1
    };
    assert!(ticks.len() == 12 && ticks.iter().all(is_both), "{ticks:?}");
    let explained = t.args(&["cron", "next", "--of", "@midnight", "--tz", "utc", "--explain"]).ok();
    assert!(explained.starts_with("@daily UTC: At 00:00.\n"), "{explained}");
}

#[test]
fn mistakes_are_told() {
    let t = nightly();
    for (args, code, says) in [
        (&["cron", "show", "nope"][..], 3, "there is no schedule \"nope\""),
        (&["cron", "rm", "nope"], 3, "there is no schedule"),
        (&["cron", "pause", "nope"], 3, "there is no schedule"),
        (&["cron", "fire", "nope"], 3, "there is no schedule"),
        (&["cron", "next", "nope"], 3, "there is no schedule"),
        (&["cron", "set", "x", "* * 30 2 *", "k"], 2, "never ticks"),
        (&["cron", "set", "x", "61 * * * *", "k"], 2, "is not a cron expression"),
        (&["cron", "set", "x", "*/90 * * * *", "k"], 2, "@every 90m"),
        (&["cron", "set", "x", "0 JAN * * *", "k"], 2, "is no hour"),
        (&["cron", "next", "--of", "@noon"], 2, "@daily"),
        (&["cron", "set", "x", "@every 1ms", "k"], 2, "every_ms 1 is not within 1000 to"),
        (&["cron", "set", "x", "* * * * *", "k", "--tz", "Mars/Base"], 2, "no time zone"),
        (&["cron", "set", "x", "* * * * *", "k", "--misfire", "run-all:0"], 2, "at_most 0"),
        (&["cron", "set", "x", "* * * * *", "k", "{"], 2, "JSON"),
        (&["cron", "set", "", "* * * * *", "k"], 2, "schedule is empty"),
        (&["cron", "next", "--of", "* * * * *", "-n", "1001"], 2, "1001"),
    ] {
        let said = t.args(args);
        assert_eq!(said.code, Some(code), "{args:?}: {}", said.err);
        assert!(said.err.contains(says), "{args:?}: {}", said.err);
    }
    let empty = Cli::new();
    assert_eq!(empty.run("cron ls").code, Some(5));
}

/// A tick that is due runs in a worker that never heard of its schedule, and the next one waits.
#[cfg(unix)]
#[test]
fn workers_keep_schedules_going() {
    let t = Cli::new();
    t.args(&["cron", "set", "often", "@every 1s", "tick", "-q", "ticks"]).ok();
    let mut worker = t.command(["work", "-q", "ticks", "--exec", "true"]).spawn().unwrap();
    let done = || t.json("ls state:done")["jobs"].as_array().unwrap().len();
    wait(|| (2 <= done()).then_some(()), || "no tick ran".to_owned());
    rustix::process::kill_process(rustix::process::Pid::from_child(&worker), rustix::process::Signal::TERM)
        .unwrap();
    assert!(worker.wait().unwrap().success());
    // The next one, and maybe one that was given back.
    let waiting = t.json("ls state:waiting")["jobs"].take();
    assert!((1..=2).contains(&waiting.as_array().unwrap().len()), "{waiting}");
}
