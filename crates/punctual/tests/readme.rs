//! The README's first program, as printed: it compiles, does what it says, and ends by Ctrl-C.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

/// The code of the README's one Rust program.
fn printed() -> String {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let code = readme.split("```rust,no_run\n").nth(1).expect("the README shows a program");
    code.split("```").next().unwrap().to_owned()
}

#[test]
fn the_readme_shows_the_example_first() {
    let example = include_str!("../examples/first.rs");
    let (_, code) = example.split_once("\n\n").unwrap();
    assert_eq!(code, printed());
}

#[test]
fn the_first_program_runs_and_ends_by_a_signal() {
    // Cargo builds examples with the tests, one folder above theirs.
    let own = std::env::current_exe().unwrap();
    let program = own.parent().unwrap().parent().unwrap().join("examples/first");
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(program).current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "to ana@example.com (attempt 1)");
    assert_eq!(next(), "to bo@example.com (attempt 1)");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    assert!(folder.path().join("app.db").exists());
}
