//! Each drill once, small: real processes, real SIGKILLs. The sizes that prove something are `scripts/test chaos`.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

fn drill(name: &str) {
    drill_with(name, &[]);
}

fn drill_with(name: &str, options: &[&str]) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual-chaos"));
    let verdict = valid(&command.args([name, "--small"]).args(options).output().unwrap());
    assert_ne!(verdict["kills"], 0, "{verdict}");
    verdict
}

fn valid(out: &Output) -> serde_json::Value {
    let (told, json) = (String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout));
    assert!(out.status.success(), "{told}\n{json}");
    let verdict: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(verdict["verdict"], "valid", "{told}");
    assert_eq!((&verdict["lost"], &verdict["waiting"]), (&0.into(), &0.into()), "{told}");
    verdict
}

#[test]
fn killed_workers_and_a_killed_server_lose_nothing_over_http() {
    let verdict = drill_with("workers", &["--http"]);
    assert_ne!(verdict["server_kills"], 0, "{verdict}");
}

#[test]
fn killed_workers_lose_nothing() {
    drill("workers");
}

#[test]
fn a_killed_producer_begins_again_and_doubles_nothing() {
    drill("producer");
}

#[test]
fn a_cancel_or_a_reschedule_against_a_start_has_one_winner() {
    drill("races");
}

/// All of its processes are stopped twice, as by a virtual machine. Nobody is killed, and all slots are taken: each lease that ends is a fault,
/// but for the stops.
#[test]
fn a_machine_that_stands_still_is_no_fault() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual-chaos"));
    command
        .args(["workers", "--small", "--kills", "0", "--jobs", "6000"])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let drill = command.spawn().unwrap();
    let group = format!("-{}", drill.id());
    let signal = |name| Command::new("kill").args([name, "--", &group]).status().unwrap().success();
    // Longer than a lease.
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(700));
        assert!(signal("-STOP"));
        thread::sleep(Duration::from_millis(1_500));
        assert!(signal("-CONT"));
    }
    let verdict = valid(&drill.wait_with_output().unwrap());
    assert_ne!(verdict["stalls"], 0, "{verdict}");
}

/// Without its slices, which take their time: `scripts/test` runs some.
#[test]
fn a_marathon_goes_on_with_its_own_plan_alone_and_says_how_its_slices_ended() {
    let folder = tempfile::tempdir().unwrap();
    let run = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual-chaos"));
        command.args(["marathon", "--json", "--at-most", "0", "--folder"]).arg(folder.path());
        let out = command.args(options).output().unwrap();
        let told = String::from_utf8(out.stderr).unwrap();
        (
            out.status.code(),
            serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap_or_default(),
            told,
        )
    };
    let (code, totals, told) = run(&["--store", "redis", "--seed", "7", "--jobs", "900", "--slices", "3"]);
    assert_eq!((code, &totals["plan"]["seed"], &totals["slices"]), (Some(3), &7.into(), &0.into()), "{told}");
    let (code, _, told) = run(&["--seed", "8"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("--seed 7"), "{told}");

    // The first slice was good, the second one lost a job, and the line of the third was cut off.
    let seeds = [4_190_879_020_u64, 954_197_257];
    let line = |at: usize, end: &str, lost: u64| {
        format!(
            r#"{{"date":"2026-11-27T00:00:00Z","commit":"abc","store":"redis","marathon":7,"slice":{},"of":3,"seed":{},"end":"{end}","jobs":300,"kills":1,"server_kills":0,"frozen":0,"harmed":0,"changes":0,"hits":1,"lost":{lost},"early":0,"unexplained":0,"stuck":0,"violations":{lost},"duplicates":0,"budget":8,"retried":9,"late_p50":1,"late_p99":2,"late_max":3,"seconds":1.5}}"#,
            at + 1,
            seeds[at]
        ) + "\n"
    };
    let ledger = folder.path().join("ledger.ndjson");
    let good = line(0, "valid", 0);
    std::fs::write(&ledger, good.clone() + &line(1, "invalid", 1)[..50]).unwrap();
    let (code, totals, told) = run(&[]);
    assert_eq!((code, &totals["slices"], &totals["is_valid"]), (Some(0), &1.into(), &true.into()), "{told}");
    assert_eq!(std::fs::read_to_string(&ledger).unwrap(), good);
    std::fs::write(&ledger, good + &line(1, "invalid", 1)).unwrap();
    let (code, totals, told) = run(&[]);
    assert_eq!((code, &totals["slices"], &totals["lost"]), (Some(1), &2.into(), &1.into()), "{told}");
}

#[test]
fn poison_dies_of_three_crashes_and_takes_nobody_with_it() {
    drill("poison");
}
