//! Every command with arguments that make it do its work, and what may be expected of it when its caller leaves.

use std::fs;

use super::{Run, elements};

/// What is lost with the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The command only looks: a reader that has seen enough is no failure.
    Looks,
    /// The command does something: a caller that can't read the answer has to be told by the exit code.
    Does,
    /// The command prints nothing on stdout.
    Silent,
}

/// What may be seen of an interrupted command in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    /// All of it or nothing.
    One,
    /// A part of it.
    Many,
}

/// A command line.
pub(crate) struct Row {
    /// The command, as clap knows it.
    pub(crate) name: &'static str,
    /// Its arguments. `{n}` is another number in each run, `{redis}` the address of a server.
    pub(crate) words: &'static [&'static str],
    pub(crate) rule: Rule,
    pub(crate) steps: Steps,
    /// It goes on until it is asked to end: then when it has begun its work.
    pub(crate) has_begun: Option<fn(&Run<'_>) -> bool>,
    /// It takes seconds: only its signals are tried unless more rounds are asked for.
    pub(crate) is_slow: bool,
}

const fn looks(name: &'static str, words: &'static [&'static str]) -> Row {
    Row { name, words, rule: Rule::Looks, steps: Steps::One, has_begun: None, is_slow: false }
}

const fn does(name: &'static str, words: &'static [&'static str]) -> Row {
    Row { rule: Rule::Does, ..looks(name, words) }
}

const fn silent(name: &'static str, words: &'static [&'static str]) -> Row {
    Row { rule: Rule::Silent, ..looks(name, words) }
}

impl Row {
    const fn in_steps(self) -> Self {
        Self { steps: Steps::Many, ..self }
    }

    const fn slow(self) -> Self {
        Self { is_slow: true, ..self }
    }

    const fn until_asked(self, has_begun: fn(&Run<'_>) -> bool) -> Self {
        Self { has_begun: Some(has_begun), steps: Steps::Many, ..self }
    }

    /// Whether the ids that it prints need not be those of jobs in the store.
    pub(crate) fn prints_other_ids(&self) -> bool {
        matches!(self.name, "delete" | "queue purge") || self.words.contains(&"--test")
    }
}

/// Jobs of the store that every run begins with.
pub(crate) const FAR: &str = "019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f01";
const FAR_TOO: &str = "019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f02";
pub(crate) const DUE: &str = "019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f03";
pub(crate) const DEAD: &str = "019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f04";
const NEW: &str = "019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f05";
/// The token of that store.
pub(crate) const TOKEN: &str = "00c0ffee";
/// The worker of that store.
pub(crate) const WORKER: &str = "00000000c0ffee00";
/// Names of that store.
pub(crate) const FAR_AT: &str = "2090-01-01T00:00Z";
pub(crate) const BULK: &str = "bulk";

/// What reads and writes more than once while it is interrupted.
const RAN: &str = "echo $PUNCTUAL_JOB_ID >> ran; sleep 0.01";

fn a_job_ran(run: &Run<'_>) -> bool {
    run.cli.path("ran").exists()
}

fn a_job_was_forwarded(run: &Run<'_>) -> bool {
    run.forwarded() != 0
}

fn its_command_started(run: &Run<'_>) -> bool {
    run.cli.path("started").exists()
}

fn jobs_were_imported(run: &Run<'_>) -> bool {
    fs::metadata(run.cli.path("punctual.db")).is_ok() && run.left_to_import() < elements()
}

fn it_listens(run: &Run<'_>) -> bool {
    run.listens()
}

fn its_folder_is_there(run: &Run<'_>) -> bool {
    run.has_temporary("punctual-")
}

/// All commands.
#[rustfmt::skip]
pub(crate) static ROWS: &[Row] = &[
    looks("audit", &["audit"]),
    does("audit", &["audit", "--repair"]),
    does("bench", &["bench", "--jobs", "64", "--waiting", "10", "--seconds", "1"]).slow().until_asked(its_folder_is_there),
    does("bench instructions", &["bench", "instructions", "--jobs", "20"]).slow(),
    does("bench tools", &["bench", "tools", "--calls", "50", "--keys", "50", "--store", "memory:"]),
    does("board add", &["board", "add", "scores", "ana", "5"]),
    looks("board around", &["board", "around", "scores", "ana"]),
    looks("board rank", &["board", "rank", "scores", "ana"]),
    does("board rm", &["board", "rm", "scores", "ana"]),
    does("board set", &["board", "set", "scores", "ana", "9"]),
    looks("board top", &["board", "top", "scores"]),
    does("cancel", &["cancel", FAR, FAR_TOO]),
    does("cancel", &["cancel", "--where", "kind:far", "-y", "--json"]),
    does("compact", &["compact"]),
    looks("completions", &["completions", "bash"]),
    looks("config check", &["config", "check"]),
    looks("config show", &["config", "show"]),
    does("cron fire", &["cron", "fire", "yearly"]),
    looks("cron ls", &["cron", "ls"]),
    looks("cron next", &["cron", "next", "yearly"]),
    looks("cron next", &["cron", "next", "--of", "@daily"]),
    does("cron pause", &["cron", "pause", "yearly", "--by", "ana"]).in_steps(),
    does("cron resume", &["cron", "resume", "stopped"]).in_steps(),
    does("cron rm", &["cron", "rm", "yearly"]).in_steps(),
    does("cron set", &["cron", "set", "new", "0 0 1 1 *", "report"]).in_steps(),
    looks("cron show", &["cron", "show", "yearly"]),
    does("delete", &["delete", FAR, "-o", "ids"]),
    does("demo", &["demo"]).slow().until_asked(its_folder_is_there),
    silent("demo-worker", &["demo-worker", "--name", "one", "--history", "history", "--queue", "none", "--lease-ms", "2000"]),
    looks("doctor", &["doctor"]),
    does("edit", &["edit", FAR, "--payload", "7"]),
    does("forward", &["forward", "-q", BULK, "--to", "{redis}?stream=out{n}", "--slots", "2", "--json"]).until_asked(a_job_was_forwarded),
    does("forward", &["forward", "--test", "--to", "{redis}?stream=out{n}"]),
    does("import backup", &["import", "backup", "--from", "{redis}", "--list", "list{n}", "--kind", "k"]).in_steps(),
    does("import backup", &["import", "backup", "--from", "{redis}", "--list", "list{n}", "--kind", "k", "--follow"]).until_asked(jobs_were_imported),
    looks("import backup", &["import", "backup", "--from", "{redis}", "--list", "list{n}", "--kind", "k", "--dry-run"]),
    does("import lists", &["import", "lists", "--from", "{redis}", "--lists", "queue{n}:*", "--delayed", "delayed{n}"]).in_steps(),
    does("import zset", &["import", "zset", "--from", "{redis}", "--key", "zset{n}", "--kind", "k", "--unit", "s"]).in_steps(),
    does("import zset-hash", &["import", "zset-hash", "--from", "{redis}", "--key", "zset{n}", "--hash", "hash{n}", "--kind", "k", "--unit", "s"]).in_steps(),
    does("import zset-keys", &["import", "zset-keys", "--from", "{redis}", "--key", "zset{n}", "--payload-key", "payload{n}:{member}", "--kind", "k", "--unit", "s"]).in_steps(),
    does("limit check", &["limit", "check", "login", "ana", "--max", "5", "--per", "1m"]),
    looks("lock ls", &["lock", "ls"]),
    does("lock release", &["lock", "release", "held"]),
    silent("lock run", &["lock", "run", "free", "--kill-after", "100ms", "--", "sh", "-c", "echo > started; sleep 0.02"]),
    silent("lock run", &["lock", "run", "free", "--kill-after", "100ms", "--", "sh", "-c", "echo > started; exec sleep 600"]).until_asked(its_command_started),
    looks("lock show", &["lock", "show", "held"]),
    looks("ls", &["ls", "-n", "200"]),
    looks("ls", &["ls", "-q", BULK, "--all", "-o", "ndjson"]),
    silent("man", &["man", "pages{n}"]),
    does("push", &["push", "email.send", "{}", "--id", NEW]),
    does("push", &["push", "email.send", "{}", "--unique", "order", "--on-conflict", "replace", "-o", "json"]),
    does("push", &["push", "email.send", "--idempotency-key", "order", "-o", "ids"]),
    does("push", &["push", "--batch", "lines"]).in_steps(),
    does("push", &["push", "email.send", "--id", NEW, "-q", "ended", "--wait", "300ms"]),
    looks("queue limit", &["queue", "limit", BULK]),
    does("queue limit", &["queue", "limit", BULK, "--concurrency", "3"]),
    looks("queue ls", &["queue", "ls"]),
    does("queue open", &["queue", "open", BULK]),
    does("queue pause", &["queue", "pause", BULK, "--by", "ana"]),
    does("queue purge", &["queue", "purge", BULK, "-y"]).in_steps(),
    does("queue resume", &["queue", "resume", "paused"]),
    does("queue set", &["queue", "set", BULK, "max_jobs=500"]),
    looks("queue show", &["queue", "show", BULK]),
    does("recover", &["recover", "recovered-{n}.db"]),
    does("reprioritise", &["reprioritise", FAR, "-p", "high"]),
    does("reschedule", &["reschedule", FAR, "--at", "2091-01-01T00:00Z"]),
    does("retry", &["retry", DEAD]),
    does("run-now", &["run-now", FAR]),
    silent("serve", &["serve", "--listen", "127.0.0.1:0"]).until_asked(it_listens),
    looks("shards", &["shards", "--store", "{redis}?prefix=shards"]),
    does("shards", &["shards", "3", "--store", "{redis}?prefix=shards{n}"]),
    looks("show", &["show", FAR]),
    looks("stats", &["stats"]),
    does("take", &["take", "-q", BULK, "-n", "140", "-o", "ids"]).in_steps(),
    does("take", &["take", "-q", BULK, "-n", "140", "-o", "ndjson"]).in_steps(),
    looks("token ls", &["token", "ls"]),
    does("token new", &["token", "new", "bo", "--role", "read"]),
    does("token revoke", &["token", "revoke", TOKEN]),
    looks("top", &["top", "-n", "2"]),
    looks("topic ls", &["topic", "ls"]),
    does("topic publish", &["topic", "publish", "news", "email.send", "{}", "--id", NEW]),
    does("topic rm", &["topic", "rm", "news"]).in_steps(),
    looks("topic show", &["topic", "show", "news"]),
    does("topic subscribe", &["topic", "subscribe", "news", "other"]),
    does("topic unsubscribe", &["topic", "unsubscribe", "news", "mail"]),
    looks("upcoming", &["upcoming"]),
    looks("why", &["why", FAR]),
    does("work", &["work", "--exec", RAN, "-q", BULK, "--slots", "3", "--kill-after", "100ms", "--json", "-v"]).until_asked(a_job_ran),
    does("work", &["work", "--exec", "echo > ran; exec sleep 600", "-q", BULK, "--slots", "1", "--grace", "50ms", "--kill-after", "100ms", "--json", "-v"]).until_asked(a_job_ran),
    looks("worker ls", &["worker", "ls"]),
    does("worker quiet", &["worker", "quiet", WORKER]),
    does("worker resume", &["worker", "resume", "here"]),
    does("worker stop", &["worker", "stop", WORKER, "-o", "ids"]),
];
