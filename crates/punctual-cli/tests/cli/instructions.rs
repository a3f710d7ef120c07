//! What one job at a time costs a server of Redis, in instructions: facts that no other load of the machine changes.

use std::{env, process::Command};

use crate::fixture::Cli;

/// The most that a life may cost, as a multiple of a life in bare scripts with the same payload. They stand 10 % above what was counted on
/// Redis 7.0.15. A change that costs less lowers them.
const BOUNDS: [(&str, f64); 10] = [
    ("plain", 3.3),
    ("default retention", 3.85),
    ("retention at its bound", 3.8),
    ("unique key", 3.6),
    ("concurrency key", 3.8),
    ("group", 5.0),
    ("1 KiB", 3.0),
    ("100 KiB", 1.6),
    ("1 MiB", 1.55),
    // The first call in each shard costs more, and the ids decide when that is.
    ("16 shards", 6.6),
];

/// The same for other calls, as a multiple of a life in bare scripts.
const CALL_BOUNDS: [(&str, f64); 2] = [("heartbeat", 0.75), ("retry with the next reserve", 7.1)];

#[test]
fn a_life_costs_no_more_instructions_than_it_did() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("MISSING: there is no valgrind, so no instructions were counted");
        assert!(env::var_os("CI").is_none(), "CI needs valgrind");
        return;
    }
    // The server is one of its own, so the store can be away.
    let figures = Cli::with_store("redis://127.0.0.1:1").json("bench instructions");
    eprintln!("{figures:#}");
    let rows = figures["rows"].as_array().unwrap();
    for (name, most) in BOUNDS {
        let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}"));
        let ratio = row["ratio"].as_f64().unwrap();
        assert!(
            1.0 < ratio && ratio <= most,
            "{name}: {ratio} times bare scripts, and {most} at most: {row}"
        );
    }
    let bare = rows[0]["life"].as_f64().unwrap();
    let calls = figures["calls"].as_array().unwrap();
    for (name, most) in CALL_BOUNDS {
        let call = calls.iter().find(|call| call["name"] == name).unwrap_or_else(|| panic!("no call {name}"));
        let ratio = call["instructions"].as_f64().unwrap() / bare;
        assert!(0.0 < ratio && ratio <= most, "{name}: {ratio} bare lives, and {most} at most: {call}");
    }
}
