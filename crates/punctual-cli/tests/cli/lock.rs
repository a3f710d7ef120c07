//! `lock run`: one command at a time, whatever becomes of the process that holds the lock.

use std::{fs, process::Child};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    exec::{is_over, process},
    fixture::{Cli, said, wait},
};

/// `lock run nightly` with this command of the shell.
fn hold(t: &Cli, options: &str, command: &str) -> Child {
    let words = ["lock", "run", "nightly"].into_iter().chain(options.split_whitespace());
    t.command(words.chain(["--", "sh", "-c", command])).spawn().unwrap()
}

/// Waits for a file that the command writes; punctual must not end before.
fn wait_for(t: &Cli, child: &Child, name: &str) {
    wait(
        || {
            if t.path(name).exists() {
                return Some(());
            }
            assert!(!is_over(Pid::from_child(child)), "punctual ended before its command wrote {name}");
            None
        },
        || format!("{name} was never written"),
    );
}

fn is_held(t: &Cli) -> bool {
    t.run("lock show nightly").code == Some(0)
}

#[test]
fn a_signal_is_passed_on_and_the_lock_is_held_until_the_command_is_gone() {
    let t = Cli::new();
    for (name, signal) in [("TERM", Signal::TERM), ("HUP", Signal::HUP), ("INT", Signal::INT)] {
        let command = format!(
            "trap 'echo > got.{name}; until [ -e go.{name} ]; do sleep 0.01; done; exit 3' {name}
             echo > started.{name}; while :; do sleep 0.01; done"
        );
        let child = hold(&t, "", &command);
        wait_for(&t, &child, &format!("started.{name}"));
        kill_process(Pid::from_child(&child), signal).unwrap();
        wait_for(&t, &child, &format!("got.{name}"));
        assert!(is_held(&t), "the command still works");
        fs::write(t.path(&format!("go.{name}")), "").unwrap();
        let said = said(child);
        assert_eq!(said.code, Some(3), "{name}: the command's own code: {said:#?}");
        assert!(!is_held(&t));
    }
}

#[test]
fn a_command_that_ignores_a_signal_is_killed_before_the_lock_is_given_up() {
    let t = Cli::new();
    let child = hold(
        &t,
        "--kill-after 100ms",
        "exec > /dev/null 2>&1; trap '' TERM; echo $$ > outer; while :; do sleep 0.01; done",
    );
    wait_for(&t, &child, "outer");
    let pid = t.wait_for_file("outer");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(said(child).code, Some(128 + 9));
    assert!(is_over(process(&pid)), "the command lives on");
    assert!(!is_held(&t));
}

#[test]
fn what_a_command_leaves_behind_ends_before_the_lock_is_given_up() {
    let t = Cli::new();
    let command = "exec > /dev/null 2>&1; sh -c 'echo $$ > inner; exec sleep 600' & sh -c 'trap \"\" TERM; echo $$ > stubborn; exec sleep 600' &
        until [ -s inner ] && [ -s stubborn ]; do sleep 0.01; done; exit 7";
    let said = said(hold(&t, "--kill-after 100ms", command));
    assert_eq!(said.code, Some(7), "{said:#?}");
    for name in ["inner", "stubborn"] {
        assert!(is_over(process(&t.wait_for_file(name))), "{name} lives on without the lock");
    }
    assert!(!is_held(&t));
}

#[test]
fn a_lost_lock_ends_all_that_the_command_started() {
    let t = Cli::new();
    // One that ignores SIGTERM; where the system knows of it, one that left the process group as well.
    let daemon = if cfg!(target_os = "linux") { "setsid" } else { "" };
    let command = format!(
        "exec > /dev/null 2>&1; sh -c 'trap \"\" TERM; echo $$ > inner; exec sleep 600' &
        {daemon} sh -c 'echo $$ > daemon; exec sleep 600' & echo $$ > outer; wait"
    );
    let child = hold(&t, "--lease 2s", &command);
    for name in ["inner", "daemon", "outer"] {
        wait_for(&t, &child, name);
    }
    let pids = ["outer", "inner", "daemon"].map(|name| process(&t.wait_for_file(name)));
    t.ok("lock release nightly");
    let said = said(child);
    assert!(said.err.contains("lost lock \"nightly\" while the command ran"), "{said:#?}");
    assert_eq!(pids.map(is_over), [true; 3], "the command, its child and its daemon");
    assert_eq!(said.code, Some(124), "{said:#?}");
}

#[test]
fn exit_codes_of_lock_run_are_not_those_of_its_command() {
    let t = Cli::new();
    assert_eq!(said(hold(&t, "", "kill -9 $$")).code, Some(128 + 9), "death by a signal");
    assert_eq!(said(hold(&t, "", "exit 4")).code, Some(4), "the command's own");
    let child = hold(&t, "", "echo > started; until [ -e go ]; do sleep 0.01; done");
    wait_for(&t, &child, "started");
    let held = t.run("lock run nightly -- true");
    assert_eq!(held.code, Some(75), "somebody else holds it: {held:#?}");
    assert!(held.err.contains("code  conflict (exit 75)"), "{held:#?}");
    fs::write(t.path("go"), "").unwrap();
    assert_eq!(said(child).code, Some(0));
    fs::write(t.path("text"), "no program").unwrap();
    assert_eq!(t.run("lock run nightly -- ./text").code, Some(126), "it can't be started");
    assert_eq!(t.run("lock run nightly -- no-such-program").code, Some(127), "there is none");
    assert!(!is_held(&t));
    let help = t.ok("lock run --help");
    assert!(["75", "124", "126", "127", "128+n"].iter().all(|code| help.contains(code)), "{help}");
}
