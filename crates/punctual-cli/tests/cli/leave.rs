//! The caller leaves: every command with nobody to read its answer, with a full disk behind stdout, with nobody to hear what it
//! says on stderr, and with a signal at any moment.
//!
//! Whatever happens: no panic, no child, no temporary folder is left behind; the exit code is not 0 where an answer was lost; and the
//! store holds what the command said, no more and no less. `PUNCTUAL_LEAVE_ROUNDS` is how often each command is interrupted
//! (default: 1; above that slow commands are tried as well), `PUNCTUAL_LEAVE_SEED` repeats a round.

mod look;
mod table;

use std::{
    collections::BTreeSet,
    env, fs, io,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use self::{
    look::{Look, Store},
    table::{BULK, ROWS, Row, Rule, Steps},
};
use crate::{
    exec::is_over,
    fixture::{Cli, wait},
    redis::server::Server,
};

/// Entries of each old queue; with more rounds more than one batch of them.
const ELEMENTS: (u64, u64) = (100, 1_100);
/// Commands that are tried at once: most of the time each waits for a disk.
const AT_ONCE: usize = 4;
/// No command takes so long, however busy the machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// Marks the processes of a run.
const MARK: &str = "PUNCTUAL_TEST_RUN";
/// Other names of commands.
const ALIASES: [&str; 2] = ["enqueue", "list"];

/// How the caller leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaves {
    /// It stays to the end.
    Not,
    /// Nobody reads stdout.
    Reader,
    /// stdout has no room.
    Room,
    /// Nobody hears stderr.
    Listener,
    /// It sends a signal, when a part of the usual time has passed.
    Signal(Signal, f64),
}

/// A run of a command, in a folder and on a store of its own.
pub(crate) struct Run<'a> {
    row: &'a Row,
    cli: Cli,
    server: &'a Server,
    number: usize,
}

/// What came of it.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    out: String,
    err: String,
    took: Duration,
}

fn said(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|n| n.parse().ok())
}

fn rounds() -> u64 {
    said("PUNCTUAL_LEAVE_ROUNDS").unwrap_or(1)
}

fn elements() -> u64 {
    if rounds() == 1 { ELEMENTS.0 } else { ELEMENTS.1 }
}

/// Every leaf of clap's tree of commands, hidden ones as well, read from what it generates for a shell.
fn commands() -> BTreeSet<String> {
    let script = Cli::new().ok("completions bash");
    let paths = script.lines().filter_map(|line| {
        let (parent, name) = line.trim().strip_suffix(')')?.split_once(',')?;
        let mut names: Vec<&str> = parent.strip_prefix("punctual")?.split("__subcmd__").skip(1).collect();
        names.push(name);
        let is_command = names.iter().all(|name| *name != "help" && !ALIASES.contains(name));
        is_command.then(|| names.join(" "))
    });
    let paths: BTreeSet<String> = paths.collect();
    let has_commands = |path: &String| paths.iter().any(|other| other.starts_with(&format!("{path} ")));
    // `bench` measures and has a command, too.
    paths.iter().filter(|path| *path == "bench" || !has_commands(path)).cloned().collect()
}

#[test]
fn no_command_is_forgotten_where_callers_leave() {
    let tried: BTreeSet<String> = ROWS.iter().map(|row| row.name.to_owned()).collect();
    assert_eq!(tried, commands(), "tests/cli/leave/table.rs has a row for each command");
}

#[test]
fn whoever_leaves_a_command_no_answer_is_lost_unsaid_and_nothing_stays_behind() {
    let (rounds, seed) = (rounds(), said("PUNCTUAL_LEAVE_SEED"));
    let only = env::var("PUNCTUAL_LEAVE_ONLY").unwrap_or_default();
    let rows: Vec<&Row> = ROWS.iter().filter(|row| row.name.contains(&only)).collect();
    let (store, server) = (Store::make(), Server::start(&[]));
    let (next, numbers, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let drill = Drill { store: &store, server: &server, numbers: &numbers };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Relaxed)) {
                    let found = drill.row(row, rounds, seed);
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
}

struct Drill<'a> {
    store: &'a Store,
    server: &'a Server,
    numbers: &'a AtomicUsize,
}

impl Drill<'_> {
    /// What is wrong with a command.
    fn row(&self, row: &Row, rounds: u64, seed: Option<u64>) -> Vec<String> {
        let mut wrong = Vec::new();
        let (mut usual, mut before, mut after) = (Duration::from_secs(1), None, None);
        if !row.is_slow || 1 < rounds {
            let run = self.begin(row);
            before = Some(Look::at(&run.cli));
            let ended = run.end(Leaves::Not, usual);
            let look = Look::at(&run.cli);
            let is_orderly = match ended.status.code() {
                Some(0) => true,
                // Asked to end by SIGTERM.
                Some(143) => row.has_begun.is_some(),
                // It waits for a job that nobody runs.
                code => row.words.contains(&"--wait") && code == Some(7),
            };
            if !is_orderly {
                wrong.push(format!("{:?} fails by itself: {ended:?}", row.words));
                return wrong;
            }
            wrong.extend(run.judge(Leaves::Not, &ended, &look, None, None));
            (usual, after) = (ended.took, Some(look));
            for leaves in [Leaves::Reader, Leaves::Room, Leaves::Listener] {
                wrong.extend(self.try_once(row, leaves, usual, before.as_ref(), after.as_ref()));
            }
        }
        for round in 0..rounds {
            let mut dice = fastrand::Rng::with_seed(seed.unwrap_or(round) ^ (row.words.len() as u64) << 32);
            let signal = dice.choice([Signal::TERM, Signal::HUP, Signal::INT]).unwrap();
            let leaves = Leaves::Signal(signal, dice.f64());
            let found = self.try_once(row, leaves, usual, before.as_ref(), after.as_ref());
            let seed = seed.unwrap_or(round);
            wrong.extend(found.into_iter().map(|text| format!("{text}\n    PUNCTUAL_LEAVE_SEED={seed}")));
        }
        wrong
    }

    fn try_once(
        &self,
        row: &Row,
        leaves: Leaves,
        usual: Duration,
        before: Option<&Look>,
        after: Option<&Look>,
    ) -> Vec<String> {
        let run = self.begin(row);
        let ended = run.end(leaves, usual);
        run.judge(leaves, &ended, &Look::at(&run.cli), before, after)
    }

    fn begin<'a>(&'a self, row: &'a Row) -> Run<'a> {
        let number = self.numbers.fetch_add(1, Relaxed);
        let run = Run { row, cli: Cli::new(), server: self.server, number };
        self.store.copy_to(&run.cli);
        if row.name == "shards" {
            let store = row.words.last().map(|word| run.word(word)).unwrap();
            run.cli.args(&["push", "k", "--store", &store]).ok();
        }
        if row.name.starts_with("import") {
            run.fill();
        }
        run
    }
}

impl Run<'_> {
    fn word(&self, word: &str) -> String {
        let address = format!("redis+unix://{}", self.server.socket().display());
        word.replace("{redis}", &address).replace("{n}", &self.number.to_string())
    }

    fn command(&self) -> Command {
        let mut command = self.cli.command(self.row.words.iter().map(|word| self.word(word)));
        command.env(MARK, self.cli.path("")).env("TMPDIR", self.cli.path(""));
        command
    }

    /// Runs it until it ends.
    fn end(&self, leaves: Leaves, usual: Duration) -> Ended {
        let mut command = self.command();
        match leaves {
            Leaves::Not | Leaves::Signal(..) => {}
            // The reader is gone before the first byte.
            Leaves::Reader => _ = command.stdout(io::pipe().unwrap().1),
            Leaves::Room => _ = command.stdout(fs::File::options().write(true).open("/dev/full").unwrap()),
            Leaves::Listener => _ = command.stderr(Stdio::from(io::pipe().unwrap().1)),
        }
        let begin = Instant::now();
        let child = command.spawn().unwrap();
        let pid = Pid::from_child(&child);
        let ended = output_of(child, begin);
        match (leaves, self.row.has_begun) {
            (Leaves::Signal(signal, part), Some(has_begun)) => {
                self.wait_for(pid, has_begun);
                thread::sleep(Duration::from_millis(40).mul_f64(part));
                let _ = kill_process(pid, signal);
            }
            (Leaves::Signal(signal, part), None) => {
                thread::sleep(usual.mul_f64(part));
                let _ = kill_process(pid, signal);
            }
            (_, Some(has_begun)) => {
                self.wait_for(pid, has_begun);
                let _ = kill_process(pid, Signal::TERM);
            }
            (_, None) => {}
        }
        ended.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            let _ = kill_process(pid, Signal::KILL);
            panic!("{:?} does not end when {leaves:?} leaves", self.row.words)
        })
    }

    /// Waits until it has begun, or ended without.
    fn wait_for(&self, pid: Pid, has_begun: fn(&Self) -> bool) {
        wait(
            || (has_begun(self) || is_over(pid)).then_some(()),
            || format!("{:?} never begins", self.row.words),
        );
    }

    /// What is wrong with how it ended, and with what it left.
    fn judge(
        &self,
        leaves: Leaves,
        ended: &Ended,
        look: &Look,
        before: Option<&Look>,
        after: Option<&Look>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let row = self.row;
        let mut find = |is_wrong: bool, what: String| {
            if is_wrong {
                wrong.push(format!("{:?}, {leaves:?} leaves: {what}\n    {ended:?}", row.words));
            }
        };
        let (code, err) = (ended.status.code(), ended.err.as_str());
        find(err.contains("panicked") || code == Some(101), "it panics".to_owned());
        let is_asked = row.has_begun.is_some();
        match (leaves, row.rule) {
            (Leaves::Reader, Rule::Looks) => find(code != Some(0) || !err.is_empty(), "it fails".to_owned()),
            (Leaves::Reader, Rule::Does) => {
                find(code == Some(0), "the answer is lost, and it ends well".to_owned());
                // Before its end a slow one has no answer to lose.
                find(
                    !row.is_slow && !err.contains("the reader of stdout went away"),
                    "it does not say that its reader went away".to_owned(),
                );
            }
            (Leaves::Room, Rule::Looks | Rule::Does) => {
                find(code == Some(0), "the answer is lost, and it ends well".to_owned());
                find(
                    !row.is_slow && !err.contains("No space left on device"),
                    "it does not say why".to_owned(),
                );
            }
            (Leaves::Listener, _) if !is_asked && row.name != "push" => {
                find(code != Some(0), "it fails since nobody hears it".to_owned());
                find(row.rule != Rule::Silent && ended.out.is_empty(), "it prints nothing".to_owned());
            }
            _ => {}
        }
        // What it said is so.
        if !row.prints_other_ids() {
            for id in ids(&ended.out).difference(&look.ids()) {
                find(true, format!("it printed job {id}, which is not there"));
            }
        }
        if row.name == "take" {
            let said = format!("{}{}", ended.out, ended.err);
            let lost = look.done_in(BULK).difference(&ids(&said)).count();
            find(0 < lost, format!("{lost} jobs were taken, and nobody learns which"));
        }
        if row.steps == Steps::One
            && leaves != Leaves::Not
            && let (Some(before), Some(after)) = (before, after)
        {
            find(look != after && look != before, format!("a half of it is done: {}", look.against(after)));
            let is_done = code == Some(0) && row.rule != Rule::Looks;
            find(is_done && look != after, format!("it is not done: {}", look.against(after)));
        }
        if row.name == "work" {
            let ran = fs::read_to_string(self.cli.path("ran")).unwrap_or_default();
            let not_run: Vec<_> = look.done_in(BULK).difference(&ids(&ran)).cloned().collect();
            find(!not_run.is_empty(), format!("done and never run: {not_run:?}"));
        }
        if row.name == "forward" && is_asked {
            let (done, sent) = (look.done_in(BULK).len() as u64, self.forwarded());
            find(sent < done, format!("{done} are done, and {sent} were handed over"));
        }
        // Nothing is left of it.
        find(code.is_some() && 0 < look.running(), format!("{} jobs are leased by nobody", look.running()));
        find(row.name == "lock run" && look.locks().len() != 1, format!("locks {:?} are held", look.locks()));
        for name in ["punctual-bench-", "punctual-demo-"] {
            find(self.has_temporary(name), format!("a folder {name}… is left"));
        }
        let mut left = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            left = self.processes();
            if left.is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        find(!left.is_empty(), format!("processes are left: {left:?}"));
        if row.name.starts_with("import") && !row.words.contains(&"--dry-run") {
            let words = row.words.iter().filter(|word| **word != "--follow").map(|word| self.word(word));
            self.cli.args(&words.collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>()).ok();
            let came = Look::at(&self.cli).ids().len() - look::TEMPLATE_JOBS;
            find(came as u64 != elements(), format!("{came} of {} came over in the end", elements()));
        }
        wrong
    }

    /// Processes that this run started, and that are not over.
    fn processes(&self) -> Vec<String> {
        let name = |pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        self.pids().into_iter().map(name).collect()
    }

    /// Whether one of its processes listens on a port: a socket of the process is in state 0A, as proc(5) says.
    fn listens(&self) -> bool {
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let listening: BTreeSet<String> = rows
            .filter(|row| row.get(3) == Some(&"0A"))
            .filter_map(|row| Some(format!("socket:[{}]", row.get(9)?)))
            .collect();
        let sockets = self.pids().into_iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok());
        let links = sockets.flatten().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        links.into_iter().any(|link| listening.contains(&*link.to_string_lossy()))
    }

    fn pids(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.cli.path("").display());
        let folders = fs::read_dir("/proc").unwrap().flatten();
        let numbers = folders.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = numbers.filter(|number| {
            let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        });
        ours.filter(|number| Pid::from_raw(*number).is_some_and(|pid| !is_over(pid))).collect()
    }

    fn has_temporary(&self, prefix: &str) -> bool {
        let entries = fs::read_dir(self.cli.path("")).unwrap().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
    }

    /// Jobs that a stream has.
    fn forwarded(&self) -> u64 {
        self.server.say(&["XLEN", &self.word("out{n}")]).trim().parse().unwrap()
    }

    /// Entries that the list still has.
    fn left_to_import(&self) -> u64 {
        self.server.say(&["LLEN", &self.word("list{n}")]).trim().parse().unwrap()
    }

    /// Makes an old queue of every layout that the command may want.
    fn fill(&self) {
        let script = r"
            local n = ARGV[1]
            for i = 1, tonumber(ARGV[2]) do
                local id = 'e' .. i
                local name = ARGV[3]
                if name == 'import backup' then redis.call('RPUSH', 'list' .. n, '{}') end
                if name == 'import lists' then redis.call('RPUSH', 'queue' .. n .. ':mail', cjson.encode({'f', i})) end
                if name ~= 'import backup' and name ~= 'import lists' then redis.call('ZADD', 'zset' .. n, i, id) end
                if name == 'import zset-hash' then redis.call('HSET', 'hash' .. n, id, '{}') end
                if name == 'import zset-keys' then redis.call('SET', 'payload' .. n .. ':' .. id, '{}') end
            end";
        self.server.say(&[
            "EVAL",
            script,
            "0",
            &self.number.to_string(),
            &elements().to_string(),
            self.row.name,
        ]);
    }
}

/// What a child says until it ends, read on a thread of its own.
fn output_of(child: Child, begin: Instant) -> mpsc::Receiver<Ended> {
    let (send, ended) = mpsc::channel();
    thread::spawn(move || {
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (out, err) = (text(output.stdout), text(output.stderr));
        let _ = send.send(Ended { status: output.status, out, err, took: begin.elapsed() });
    });
    ended
}

/// The whole ids in a text.
fn ids(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_hexdigit() || c == '-'));
    let is_id = |word: &&str| word.len() == 36 && word.bytes().filter(|b| *b == b'-').count() == 4;
    words.filter(is_id).map(str::to_owned).collect()
}

#[test]
fn help_that_could_not_be_printed_is_a_failure() {
    let t = Cli::new();
    for line in ["--help", "--version", "queue set -h"] {
        let mut command = t.command(line.split(' '));
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let said = crate::fixture::said(command.stdout(full).spawn().unwrap());
        assert_eq!(said.code, Some(1), "{line}: {said:#?}");
        assert!(said.err.contains("No space left on device"), "{said:#?}");
        let said = crate::fixture::said(command.stdout(io::pipe().unwrap().1).spawn().unwrap());
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{line}");
    }
}
