//! A server of Redis for tests: a real one, of this test binary alone, on a Unix socket in a folder of its own.
//!
//! A shell stands between: it kills the server and removes the folder as soon as its input ends, which the system sees to
//! however this process ends. (A signal on the parent's death would come with the end of the *thread* that started it.)
#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to answer.
const START_MAX: Duration = Duration::from_secs(20);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(5);

/// Starts a server for each line that it reads, and says its process id. It must outlive whoever listens to it.
const GUARD: &str = r#"
    trap '' HUP INT PIPE TERM
    folder=$1; shift
    while read -r _; do "$@" </dev/null & echo $! 2>/dev/null; done
    kill -KILL $!; wait; rm -rf "$folder"
"#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    folder: PathBuf,
    guard: Child,
    /// What the guard says.
    says: BufReader<ChildStdout>,
    pid: u32,
}

impl Server {
    /// The one of this test binary, which keeps nothing on disk.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[]))
    }

    /// Another one, with more options: `&["--appendonly", "yes"]`.
    pub(crate) fn start(options: &[&str]) -> Self {
        let version = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
        assert!(
            version.is_ok_and(|status| status.success()),
            "these tests need redis-server on the path: apt-get install redis-server"
        );
        let folder =
            tempfile::Builder::new().prefix("punctual-redis-").tempdir().expect("a temporary folder");
        let folder = folder.keep();
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).arg(&folder);
        command.args([
            "redis-server",
            "--port",
            "0",
            "--daemonize",
            "no",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--unixsocket").arg(folder.join("s")).arg("--dir").arg(&folder);
        command.arg("--logfile").arg(folder.join("log")).args(options);
        // Not in the terminal's group: who interrupts the tests ends them first, and that ends the server.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = command.spawn().expect("a shell starts");
        let says = BufReader::new(guard.stdout.take().expect("its output is piped"));
        let mut server = Self { folder, guard, says, pid: 0 };
        server.restart();
        server
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("s")
    }

    /// The address of a store of its own on this server.
    pub(crate) fn url(&self) -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let n = LAST.fetch_add(1, Ordering::Relaxed);
        format!("redis+unix://{}?prefix=t{n}", self.socket().display())
    }

    /// Kills the server as a power cut would; its files stay.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        self.until("it still answers after a SIGKILL", |answers| !answers);
    }

    /// Starts the server again after [`kill`](Self::kill), on the same files.
    pub(crate) fn restart(&mut self) {
        let mut input = self.guard.stdin.as_ref().expect("it is open until the end");
        input.write_all(b"start\n").expect("the guard listens");
        let mut line = String::new();
        self.says.read_line(&mut line).expect("the guard says whom it guards");
        self.pid = line.trim().parse().expect("a process id");
        self.until("it does not answer", |answers| answers);
    }

    /// Stops the server for a while: it takes what is sent and answers nothing.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    /// Ends what [`freeze`](Self::freeze) began.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid.to_string()]).status();
        assert!(status.expect("kill runs").success(), "could not send SIG{name} to the server");
    }

    fn until(&self, otherwise: &str, done: impl Fn(bool) -> bool) {
        let begin = Instant::now();
        while !done(UnixStream::connect(self.socket()).is_ok()) {
            if START_MAX < begin.elapsed() {
                let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                panic!("redis-server: {otherwise}\n{log}");
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        drop(self.guard.wait());
    }
}
