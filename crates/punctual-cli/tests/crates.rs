//! What a newcomer has to build: the number of crates of each build that the first pages name, by `cargo tree` on the lock file.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{collections::BTreeSet, path::Path, process::Command};

/// The crates that a build of a package compiles for this machine, itself among them.
fn crates(package: &str, features: &[&str]) -> BTreeSet<String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(workspace).args(["tree", "--locked", "--offline", "--package", package]);
    cargo.args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}", "--no-dedupe"]);
    cargo.args(features);
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{cargo:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(ToOwned::to_owned).collect()
}

/// Names of crates without their versions.
fn has(crates: &BTreeSet<String>, name: &str) -> bool {
    crates.iter().any(|line| line.split(' ').next() == Some(name))
}

#[track_caller]
fn at_most(most: usize, package: &str, features: &[&str]) {
    let crates = crates(package, features);
    // An empty answer would pass.
    assert!(has(&crates, package) && has(&crates, "tokio"), "{crates:#?}");
    assert!(crates.len() <= most, "{} crates, at most {most} are wanted: {crates:#?}", crates.len());
}

#[test]
fn the_demo_of_a_clone_is_at_most_131_crates() {
    at_most(131, "punctual-cli", &[]);
}

#[test]
fn the_library_is_at_most_67_crates() {
    at_most(67, "punctual", &[]);
}

#[test]
fn the_default_build_has_both_stores_and_no_client_of_a_broker() {
    let crates = crates("punctual-cli", &[]);
    for wanted in ["rusqlite", "redis", "tokio-rustls"] {
        assert!(has(&crates, wanted), "{wanted} is missing");
    }
    for unwanted in ["punctual-forward", "lapin", "async-nats", "reqwest", "clap_mangen", "p12-keystore"] {
        assert!(!has(&crates, unwanted), "{unwanted} is in the default build");
    }
}

#[test]
fn every_build_has_one_implementation_of_tls() {
    let crates = crates("punctual-cli", &["--all-features"]);
    assert!(has(&crates, "rustls") && has(&crates, "ring"));
    for unwanted in ["aws-lc-rs", "aws-lc-sys", "openssl-sys", "native-tls"] {
        assert!(!has(&crates, unwanted), "{unwanted} is in the build");
    }
}
