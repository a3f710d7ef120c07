//! Each drill once, small: real processes, real SIGKILLs. The sizes that prove something are `scripts/test chaos`.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::process::Command;

fn drill(name: &str) {
    drill_with(name, &[]);
}

fn drill_with(name: &str, options: &[&str]) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual-chaos"));
    let out = command.args([name, "--small"]).args(options).output().unwrap();
    let (told, json) = (String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout));
    assert!(out.status.success(), "{told}\n{json}");
    let verdict: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(verdict["verdict"], "valid", "{told}");
    assert_eq!((&verdict["lost"], &verdict["waiting"]), (&0.into(), &0.into()), "{told}");
    assert_ne!(verdict["kills"], 0, "{told}");
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

#[test]
fn poison_dies_of_three_crashes_and_takes_nobody_with_it() {
    drill("poison");
}
