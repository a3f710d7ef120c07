//! A server of NATS with JetStream for tests: a real one, with a folder and a port of its own.
//!
//! A shell stands between: it kills the server and removes the folder as soon as its input ends, which the system sees to however
//! this process ends.
#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to answer.
const START_MAX: Duration = Duration::from_secs(20);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(5);

/// Starts a server for each line that it reads, and says its process id.
const GUARD: &str = r#"
    trap '' HUP INT PIPE TERM
    folder=$1; shift
    while read -r _; do "$@" </dev/null >/dev/null 2>&1 & echo $! 2>/dev/null; done
    kill -KILL $! 2>/dev/null; wait; rm -rf "$folder"
"#;

/// A running server.
pub(crate) struct Server {
    port: u16,
    guard: Child,
    says: BufReader<ChildStdout>,
    pid: u32,
}

impl Server {
    /// One with more options: `&["--user", "u", "--pass", "p"]`, or the text of a file of settings.
    pub(crate) fn start(options: &[&str], settings: &str) -> Self {
        let version = Command::new("nats-server").arg("--version").stdout(Stdio::null()).status();
        assert!(
            version.is_ok_and(|status| status.success()),
            "these tests need nats-server on the path: apt-get install nats-server"
        );
        let folder = tempfile::Builder::new().prefix("punctual-nats-").tempdir().unwrap().keep();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let file = folder.join("settings");
        std::fs::write(&file, settings).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).arg(&folder).args(["nats-server", "-a", "127.0.0.1", "-js", "-c"]);
        command.arg(&file).args(["-p", &port.to_string(), "-sd"]).arg(folder.join("store")).args(options);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = command.spawn().expect("a shell starts");
        let says = BufReader::new(guard.stdout.take().unwrap());
        let mut server = Self { port, guard, says, pid: 0 };
        server.restart();
        server
    }

    /// Where it listens: a host and a port.
    pub(crate) fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the server as a power cut would; its files stay.
    pub(crate) fn kill(&self) {
        let status = Command::new("kill").args(["-KILL", &self.pid.to_string()]).status();
        assert!(status.unwrap().success());
        self.until(|answers| !answers);
    }

    /// Starts the server again after [`kill`](Self::kill), on the same files.
    pub(crate) fn restart(&mut self) {
        self.guard.stdin.as_ref().unwrap().write_all(b"start\n").unwrap();
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        self.pid = line.trim().parse().unwrap();
        self.until(|answers| answers);
    }

    fn until(&self, done: impl Fn(bool) -> bool) {
        let begin = Instant::now();
        while !done(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()) {
            assert!(begin.elapsed() < START_MAX, "nats-server does not do as it is told");
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
