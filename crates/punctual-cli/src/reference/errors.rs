//! `errors.md`: the kinds of errors, the codes that the command prints, and the exit codes.

use clap::CommandFactory as _;
use punctual::{Error, ErrorKind};

use super::{check, code, number, row, table};
use crate::{
    args::Args,
    commands::work::process::{EXIT_DEAD, EXIT_SNOOZE},
    errors::{Code, Exit, Failure},
    help,
    requests::EXIT_SIGNAL,
};

/// What a kind means.
fn meaning(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unavailable => "The store is unavailable. Nothing was changed.",
        ErrorKind::UnknownOutcome => "The reply was lost. The call may have taken effect.",
        ErrorKind::StoreFull => "The disk or memory of the store is full. Nothing was written.",
        ErrorKind::Full => "The queue is at its cap, `max_jobs` or `max_bytes`. The job was not stored.",
        ErrorKind::Closed => "The store or the client was closed.",
        ErrorKind::Invalid => "The input breaks a limit or a rule. Nothing was written.",
        ErrorKind::TooLarge => "The input is larger than a limit. Nothing was written.",
        ErrorKind::Conflict => {
            "Two settings, or two parts of one call, contradict each other, or other callers kept changing the same thing."
        }
        ErrorKind::Corrupt => "A stored record or file cannot be read. Its bytes are kept.",
        ErrorKind::Unsupported => "This store, build or version does not support the call.",
        ErrorKind::Outdated => {
            "A newer version of punctual wrote to the store. This process changed nothing."
        }
        ErrorKind::Unauthenticated => "A server needs a token, or does not know the one that it got.",
        ErrorKind::Forbidden => "The token does not allow the call. Nothing was changed.",
        kind => panic!("{kind:?} has no meaning on the page"),
    }
}

/// What a code means, what to try, and whether the command can be repeated.
const fn about(code: Code) -> (&'static str, &'static str, &'static str) {
    match code {
        Code::Invalid => (
            "An option, a payload or a setting is wrong. Nothing was written.",
            "Correct the command. The message names the part that is wrong.",
            "no: it fails again",
        ),
        Code::PayloadTooLarge => (
            "A payload, result or file is over its limit. Nothing was written.",
            "Store the data elsewhere, and put its address into the payload.",
            "no: it fails again",
        ),
        Code::Unsupported => (
            "This store, build or system does not support the command.",
            "Use another store or build. The message says which.",
            "no: it fails again",
        ),
        Code::Outdated => (
            "A newer version of punctual wrote to the store. Nothing was changed.",
            "Install that version.",
            "no: it fails again",
        ),
        Code::NotFound => (
            "The job, schedule, topic, lock or member does not exist, or was already removed.",
            "Check the name and the store (`punctual config show`).",
            "yes",
        ),
        Code::QueueUnknown => (
            "The queue does not exist: it has no jobs and no settings.",
            "Check the name (`punctual queue ls`).",
            "yes",
        ),
        Code::Conflict => (
            "Something else has the name, the lock or the key, or the parts of a command contradict each other.",
            "Read the message: wait, choose another name, or correct the command.",
            "check first what was done",
        ),
        Code::WrongState => (
            "The job is in a state that does not allow the change.",
            "Look at the job (`punctual show ID`).",
            "yes",
        ),
        Code::UniqueConflict => (
            "Another job holds the unique key of the job that was to be retried.",
            "Wait until that job has ended, or cancel it.",
            "yes",
        ),
        Code::LimiterConflict => (
            "The job cannot be retried in its old shard while other jobs of its group or concurrency key live in another.",
            "Wait until those jobs have ended.",
            "yes",
        ),
        Code::StoreUnavailable => (
            "The store cannot be reached or opened. The call that failed changed nothing.",
            "Check the server or the file (`punctual doctor`), then repeat the command.",
            "yes",
        ),
        Code::StoreFull => (
            "The disk or memory of the store is full, or the queue is at its cap. The job was not stored.",
            "Free space, raise the cap (`punctual queue set`), or wait until jobs have ended.",
            "yes",
        ),
        Code::Unauthenticated => (
            "The server needs a token, or does not know the one that it got. Nothing was changed.",
            "Name a file with a valid token in the address (`token_file=PATH`).",
            "no: it fails again",
        ),
        Code::Forbidden => (
            "The token does not allow the command, or the server is read-only. Nothing was changed.",
            "Use a token with a higher role, or one for this queue (`punctual token new`).",
            "no: it fails again",
        ),
        Code::TimedOut => (
            "The time of `--timeout` or `push --wait` is over. With `push --wait`, the job was stored.",
            "Allow more time. After `push --wait`, look at the job (`punctual show ID`).",
            "yes, but repeat `push` only with `--id` or `--idempotency-key`",
        ),
        Code::UnknownOutcome => (
            "The reply was lost. The change may have been made completely, partly or not at all.",
            "Repeat the command with the same id or key, or check with `punctual ls` first.",
            "with the same id or key",
        ),
        Code::Corrupt => (
            "A stored record or file cannot be read. Its bytes are kept.",
            "Run `punctual doctor` and `punctual audit`, then `punctual audit --repair`. If the file is damaged, restore a backup, or use `punctual recover`.",
            "yes, but it fails again",
        ),
        Code::Failed => (
            "Something else failed: output that cannot be printed, a command that cannot be started, a receiver that refused.",
            "Read the message.",
            "check first what was done",
        ),
    }
}

/// What an exit code means.
const fn effect(exit: Exit) -> &'static str {
    match exit {
        Exit::Success => {
            "The command did its work. If a reader of its output stops early, such as `head`, a command that only reads ends with 0. Others end with 1."
        }
        Exit::Failed => {
            "The command failed, or did its work and the result is bad: see [by command](#exit-codes-by-command)."
        }
        Exit::Invalid => {
            "The command line, an input or a setting is wrong, or the command is not supported here. Nothing was written."
        }
        Exit::NotFound => "What the command names does not exist.",
        Exit::Conflict => "The command conflicts with what is there.",
        Exit::Store => "The store cannot be reached, or has no space.",
        Exit::Refused => "The server refused the caller: it needs a token, or another one.",
        Exit::TimedOut => "A time limit is over.",
        Exit::Unknown => "The reply was lost, so the outcome is unknown.",
        Exit::Interrupted => {
            "Ctrl-C ended the command. Another signal n ends it with 128 + n: 129 SIGHUP, 143 SIGTERM. `work`, `forward` and `serve` stop with 0."
        }
        _ => "",
    }
}

/// The commands whose exit codes have a meaning of their own.
fn by_command() -> Vec<(&'static str, String, &'static str)> {
    let own = |exit: Exit| (exit as u8).to_string();
    let mut rows = vec![
        (
            "punctual push",
            own(Exit::Failed),
            "With `--wait`: the job ended dead or cancelled. With `--batch`: a line was not stored.",
        ),
        ("punctual push", own(Exit::Conflict), "With `--must-be-new`: the job is a duplicate."),
        ("punctual push", own(Exit::TimedOut), "With `--wait`: the job has not ended. It was stored."),
        ("punctual work", own(Exit::Success), "A signal stopped it. Its jobs ended, or were released."),
        ("punctual forward", own(Exit::Success), "A signal stopped it. Its jobs ended, or were released."),
        ("punctual limit check", own(Exit::Conflict), "The call is refused."),
        ("punctual doctor", own(Exit::Failed), "A check failed."),
        ("punctual audit", own(Exit::Failed), "Something is wrong, and was not repaired."),
        ("punctual recover", own(Exit::Failed), "The new file could not be repaired."),
        ("punctual forward", own(Exit::Failed), "With `--test`: a receiver did not accept the test job."),
        ("punctual demo", own(Exit::Failed), "A job was lost, started early, or ran twice without a reason."),
        ("punctual import", own(Exit::Failed), "Some jobs were left or refused."),
        ("punctual lock run", "0 to 255".to_owned(), "The command ran, and this is its exit code."),
        ("punctual lock run", format!("{EXIT_SIGNAL} + n"), "Signal n ended the command."),
    ];
    let others = Exit::OF_LOCK_RUN.into_iter();
    rows.extend(others.map(|(exit, meaning)| ("punctual lock run", own(exit), meaning)));
    rows
}

fn page() -> String {
    let kinds = ErrorKind::ALL.into_iter().map(|kind| {
        let repeat = if Error::new(kind, "").is_repeatable() { "yes" } else { "no" };
        [code(format!("{kind:?}")), code(kind.code()), meaning(kind).to_owned(), repeat.to_owned()]
    });
    let codes = Code::ALL.into_iter().map(|of| {
        let (meaning, hint, repeat) = about(of);
        [
            code(of.name()),
            (of.exit() as u8).to_string(),
            meaning.to_owned(),
            hint.to_owned(),
            repeat.to_owned(),
        ]
    });
    let exits = Exit::ALL.into_iter().map(|(exit, short)| {
        [
            (exit as u8).to_string(),
            short.split(',').next().unwrap_or_default().to_owned(),
            effect(exit).to_owned(),
        ]
    });
    let by_command =
        by_command().into_iter().map(|(command, exit, meaning)| [code(command), exit, meaning.to_owned()]);
    let job = [
        ["0".to_owned(), "The job is done.".to_owned()],
        [EXIT_SNOOZE.to_string(), "The job runs again after `--snooze`. No failure is counted.".to_owned()],
        [EXIT_DEAD.to_string(), "The job is dead. It is not retried.".to_owned()],
        ["any other".to_owned(), "The attempt failed. The job is retried after its backoff.".to_owned()],
    ];
    let example: Failure = punctual::job::Filter::parse("kimd:x").expect_err("a typo").into();
    format!(
        "# Errors and exit codes

A failed command prints the error on stderr: what happened, why, what to try, and a code. Programs should read the code, never the text.

```text
error: {human}```

With `-o json` or `-o ndjson`, the error is one line of JSON. `why` is a list of causes. `try` is text or `null`.

```json
{json}
```

Wrong options are reported by the parser of the command line. Such a command ends with {invalid}, prints how it is used, and has no code.

## Codes of the command

{codes}To repeat `push` safely, give the job an id or a key with `--id` or `--idempotency-key`. A job that was already stored is then a duplicate,
and is not stored again.

With several jobs, each job has its own answer. The exit code is that of the first job that failed.

## Exit codes

{exits}## Exit codes by command

A command that is not listed has only the codes above. A command whose question is answered with no ends with {failed} and changes nothing.

{by_command}The command that `punctual work --exec` runs decides with its exit code what happens to the job:

{job}A job whose command was ended by a signal is retried after its backoff.

## Kinds of errors in a program

`punctual::Error` has a kind, a message, a hint and causes. `Error::is_repeatable` returns whether the same call, with the same ids, can be
repeated. A duplicate, a lost lease and a job in another state are not errors but values that calls return.

{kinds}Workers repeat repeatable calls by themselves.
",
        human = example,
        json = example.json().unwrap_or_default(),
        invalid = number(Exit::Invalid as u64),
        failed = number(Exit::Failed as u64),
        codes = table([row(["code", "exit", "meaning", "what to try", "safe to repeat"])].into_iter().chain(codes)),
        exits = table([row(["exit", "name", "meaning"])].into_iter().chain(exits)),
        by_command = table([row(["command", "exit", "meaning"])].into_iter().chain(by_command)),
        job = table([row(["exit", "the job"])].into_iter().chain(job)),
        kinds = table([row(["kind", "code", "meaning", "`is_repeatable`"])].into_iter().chain(kinds)),
    )
}

#[test]
fn the_page_of_errors_is_what_the_code_says() {
    check("errors.md", &page());
}

#[test]
fn every_kind_of_the_library_has_a_code_of_the_command() {
    for kind in ErrorKind::ALL {
        assert_eq!(Code::from(kind).name(), kind.code(), "{kind:?}");
    }
}

#[test]
fn help_lists_the_exit_codes() {
    let about = Args::command().get_long_about().map(ToString::to_string).unwrap_or_default();
    let exits = Exit::ALL.map(|(exit, short)| format!("{} {short}", exit as u8)).join("; ");
    let plain = about.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.contains(&format!("Exit codes: {exits}.")), "--help does not say {exits:?}");
}

#[test]
fn each_command_with_an_exit_code_of_its_own_is_listed() {
    let listed = by_command();
    for (path, command) in help::commands() {
        let path = path.join(" ");
        let helps = command.get_arguments().filter_map(|arg| arg.get_help().map(ToString::to_string));
        let text =
            helps.chain(command.get_after_help().map(ToString::to_string)).collect::<String>().to_lowercase();
        let names_one = text.contains("exit code") || text.contains("exit 0");
        // `work` says what the exit code of its job's command means.
        assert!(
            !names_one
                || path == "punctual"
                || path == "punctual work"
                || listed.iter().any(|(name, ..)| *name == path),
            "{path} is not listed"
        );
    }
    for (name, ..) in listed {
        assert!(
            help::commands().iter().any(|(path, _)| path.join(" ") == name),
            "there is no command {name}"
        );
    }
}
