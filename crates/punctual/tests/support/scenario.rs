//! A scenario: an example that runs to its end, and fails where it does not find what it promises.

use std::process::Command;

/// Runs the program of an example of this package, and shows what it said.
pub(crate) fn run(example: &str, arguments: &[&str]) {
    run_with(example, |program| program.args(arguments));
}

/// Runs it as `prepare` says, in a folder of its own.
pub(crate) fn run_with(example: &str, prepare: impl FnOnce(&mut Command) -> &mut Command) {
    // Cargo puts examples one folder above the tests.
    let own = std::env::current_exe().expect("this program has a path");
    let folder = own.parent().and_then(|deps| deps.parent()).expect("it is in a folder of cargo's");
    let program = folder.join("examples").join(example);
    assert!(program.exists(), "{} is not built: cargo build --examples for its package", program.display());
    let own_folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let output = prepare(Command::new(program).current_dir(&own_folder)).output().expect("it starts");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // In one piece: others run beside it.
    println!("── {example} ──\n{said}{failed}");
    assert!(output.status.success(), "{example}: {}", output.status);
    // Lines of a consumer may follow: it has a process of its own.
    let has_checked = said.lines().any(|line| line.starts_with("checked "));
    assert!(has_checked, "{example} does not tell what it has checked");
}
