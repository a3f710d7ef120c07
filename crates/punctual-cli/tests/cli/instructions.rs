//! What one job at a time costs a server of Redis, in instructions: facts that no other load of the machine changes.

use std::{env, process::Command};

use crate::fixture::Cli;

/// The most that a life may cost, as a multiple of a life in bare scripts with the same payload. They stand a tenth above what was
/// counted on Redis 7.0.15, since some of the work depends on the sizes of tables of the server. A change that costs less lowers them.
const BOUNDS: [(&str, f64); 9] = [
    ("plain", 5.9),
    ("default retention", 6.4),
    ("unique key", 10.4),
    ("concurrency key", 9.0),
    ("group", 14.1),
    ("1 KiB", 5.9),
    ("100 KiB", 2.0),
    ("1 MiB", 1.7),
    ("16 shards", 14.5),
];

#[test]
fn a_life_costs_no_more_instructions_than_it_did() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("MISSING: there is no valgrind, so no instructions were counted");
        assert!(env::var_os("CI").is_none(), "CI needs valgrind");
        return;
    }
    let figures = Cli::new().json("bench instructions --jobs 50");
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
