//! What one job at a time costs a server of Redis, in instructions: facts that no other load of the machine changes.

use std::{env, process::Command};

use crate::fixture::Cli;

/// The most that a life may cost, as a multiple of a life in bare scripts with the same payload. They stand 5 % above what was counted on
/// Redis 7.0.15, and 10 % where a busy machine changes what the jobs beside a life find. A change that costs less lowers them.
const BOUNDS: [(&str, f64); 10] = [
    ("plain", 3.15),
    ("default retention", 3.6),
    ("retention at its bound", 3.77),
    ("unique key", 3.5),
    ("concurrency key", 9.3),
    ("group", 4.64),
    ("1 KiB", 3.11),
    ("100 KiB", 1.55),
    ("1 MiB", 1.49),
    ("16 shards", 9.05),
];

#[test]
fn a_life_costs_no_more_instructions_than_it_did() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("MISSING: there is no valgrind, so no instructions were counted");
        assert!(env::var_os("CI").is_none(), "CI needs valgrind");
        return;
    }
    // The server is one of its own, so the store can be away.
    let figures = Cli::with_store("redis://127.0.0.1:1").json("bench instructions --jobs 50");
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
}
