//! Servers of Redis for tests: real ones, of this test binary alone, each on a Unix socket in a folder of its own; those
//! that must find each other listen on a port, too.
//!
//! A shell stands between: it kills the server and removes the folder as soon as its input ends, which the system sees to
//! however this process ends. (A signal on the parent's death would come with the end of the *thread* that started it.)
#![allow(dead_code, reason = "each test binary takes what it needs")]

pub(crate) mod acl;
mod certificates;
mod cluster;
mod sentinel;

use std::{
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU16, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

#[allow(unused_imports, reason = "each test binary takes what it needs")]
pub(crate) use self::{certificates::Certificates, cluster::Cluster, sentinel::Sentinels};

/// How long a server may take to answer.
const START_MAX: Duration = Duration::from_mins(1);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(5);

/// Starts a server for each line that it reads, and says its process id. It must outlive whoever listens to it.
const GUARD: &str = r#"
    trap '' HUP INT PIPE TERM
    folder=$1; shift
    while read -r _; do "$@" </dev/null & echo $! 2>/dev/null; done
    kill -KILL $! 2>/dev/null; wait; rm -rf "$folder"
"#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    folder: PathBuf,
    guard: Child,
    /// What the guard says.
    says: BufReader<ChildStdout>,
    pid: u32,
    /// 0: it listens on none.
    port: u16,
    /// Whether it knows the user of the guide.
    knows_user: bool,
}

impl Server {
    /// The one of this test binary, which keeps nothing on disk. Who comes there may do what the guide says is enough.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(Self::admitting)
    }

    /// Another one like it.
    pub(crate) fn admitting() -> Self {
        let mut server = Self::start(&[]);
        server.admit(&["always"]);
        server
    }

    /// Another one, with more options: `&["--appendonly", "yes"]`.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::launch(0, |_| options.iter().map(|&option| option.to_owned()).collect())
    }

    /// Another one, which listens on a port besides.
    pub(crate) fn listening(options: &[&str]) -> Self {
        Self::launch(free_port(), |_| options.iter().map(|&option| option.to_owned()).collect())
    }

    /// Another one, which listens on a port besides, and only for TLS.
    pub(crate) fn encrypted(certificates: &Certificates, options: &[&str]) -> Self {
        let port = free_port();
        let own = certificates.options(port);
        Self::launch(port, |_| {
            own.into_iter().chain(options.iter().map(|&option| option.to_owned())).collect()
        })
    }

    /// Starts a server with the options that `options` makes of its folder; a file comes first.
    fn launch(port: u16, options: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let version = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
        assert!(
            version.is_ok_and(|status| status.success()),
            "these tests need redis-server on the path: apt-get install redis-server"
        );
        let folder =
            tempfile::Builder::new().prefix("punctual-redis-").tempdir().expect("a temporary folder");
        let folder = folder.keep();
        let options = options(&folder);
        let (file, options) =
            options.split_at(usize::from(options.first().is_some_and(|o| o.starts_with('/'))));
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).arg(&folder).arg("redis-server").args(file);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"]);
        if file.is_empty() {
            command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
        }
        command.arg("--unixsocket").arg(folder.join("s")).arg("--dir").arg(&folder);
        command.arg("--logfile").arg(folder.join("log")).args(options);
        // Whom it admits it still knows when it comes back. Who has users of their own tells it otherwise.
        if !options.iter().any(|option| ["--user", "--requirepass"].contains(&option.as_str())) {
            std::fs::File::create(folder.join("users")).expect("a file in a new folder");
            command.arg("--aclfile").arg(folder.join("users"));
        }
        // Not in the terminal's group: who interrupts the tests ends them first, and that ends the server.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = command.spawn().expect("a shell starts");
        let says = BufReader::new(guard.stdout.take().expect("its output is piped"));
        let mut server = Self { folder, guard, says, pid: 0, port, knows_user: false };
        server.restart();
        server
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The part of its log of writes that grows, where it keeps one. It is one part as long as nobody has the log written anew.
    pub(crate) fn log(&self) -> Option<PathBuf> {
        let parts = std::fs::read_dir(self.folder.join("appendonlydir")).ok()?;
        let mut parts = parts.map(|part| part.expect("a folder can be read").path());
        parts.find(|part| part.to_string_lossy().ends_with(".incr.aof"))
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("s")
    }

    /// The address of a store of its own on this server, as the user of the guide where it has that one.
    pub(crate) fn url(&self) -> String {
        if self.knows_user {
            return format!("{}&user={}&pass={}", self.root_url(), acl::USER, acl::PASSWORD);
        }
        self.root_url()
    }

    /// The same, for who may do everything.
    pub(crate) fn root_url(&self) -> String {
        format!("redis+unix://{}?{}", self.socket().display(), own_prefix())
    }

    /// Lets the user of the guide in, with the rights that it lists under these headings.
    pub(crate) fn admit(&mut self, headings: &[&str]) {
        for heading in headings {
            let line = acl::line(heading);
            let words: Vec<_> = line.split(' ').collect();
            // A sentinel that makes a replica of it ends its connections.
            self.until_says(&words, |answer| answer == "OK");
        }
        self.until_says(&["ACL", "SAVE"], |answer| answer == "OK");
        self.knows_user = true;
    }

    /// Where it listens besides.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// What it answers to a command.
    pub(crate) fn say(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        let output = command.arg("-s").arg(self.socket()).args(words).output().expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The same for one line, whose words may be quoted as redis-cli prints them.
    pub(crate) fn say_line(&self, line: &str) -> String {
        let mut command = Command::new("redis-cli");
        let command = command.arg("-s").arg(self.socket()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("redis-cli runs");
        child.stdin.take().expect("a pipe").write_all(line.as_bytes()).expect("redis-cli reads");
        let output = child.wait_with_output().expect("redis-cli ends");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Comes back when it answers as is wished.
    pub(crate) fn until_says(&self, words: &[&str], wished: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        loop {
            let answer = self.say(words);
            if wished(&answer) {
                return;
            }
            assert!(begin.elapsed() < START_MAX, "{words:?}: {answer}");
            thread::sleep(LOOK);
        }
    }

    /// Whether it has a command.
    pub(crate) fn knows(&self, command: &str) -> bool {
        !self.say(&["COMMAND", "INFO", command]).is_empty()
    }

    /// What it is a server of.
    pub(crate) fn program(&self) -> &'static str {
        if self.say(&["INFO", "server"]).contains("valkey_version") { "Valkey " } else { "Redis " }
    }

    /// Whether it is there, and takes writes.
    pub(crate) fn is_primary(&self) -> bool {
        self.say(&["ROLE"]).lines().next() == Some("master")
    }

    /// Comes back when so many replicas are up to date with it.
    pub(crate) fn until_has_replicas(&self, n: usize) {
        self.until_says(&["INFO", "replication"], |info| are_online(info, n));
    }

    /// Whether so many replicas are up to date with it.
    pub(crate) fn has_replicas(&self, n: usize) -> bool {
        are_online(&self.say(&["INFO", "replication"]), n)
    }

    /// Comes back when all its replicas have what it has now.
    pub(crate) fn until_replicated(&self) {
        let number =
            |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>();
        let offset = |info: &str, name: &str| {
            let (_, rest) = info.split_once(name)?;
            number(rest).ok()
        };
        let now = offset(&self.say(&["INFO", "replication"]), "master_repl_offset:");
        self.until_says(&["INFO", "replication"], |info| {
            let mut replicas = info.lines().filter(|line| line.starts_with("slave")).peekable();
            replicas.peek().is_some() && replicas.all(|replica| now <= offset(replica, "offset="))
        });
    }

    /// Kills the server as a power cut would; its files stay.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        self.until("it still answers after a SIGKILL", |answers| !answers);
    }

    /// Starts the server again after [`kill`](Self::kill), on the same files, as whoever follows the guide does. Comes back when it
    /// has read them.
    pub(crate) fn restart(&mut self) {
        self.begin_restart();
        self.until_says(&["PING"], |answer| !answer.starts_with("LOADING"));
    }

    /// The same; comes back when it listens.
    pub(crate) fn begin_restart(&mut self) {
        self.mend_log();
        let mut input = self.guard.stdin.as_ref().expect("it is open until the end");
        input.write_all(b"start\n").expect("the guard listens");
        let mut line = String::new();
        self.says.read_line(&mut line).expect("the guard says whom it guards");
        self.pid = line.trim().parse().expect("a process id");
        self.until("it does not answer", |answers| answers);
    }

    /// Cuts a transaction off the log of writes that a kill let into it in part: the server itself cuts within it, and has half
    /// of it done when it starts once more.
    fn mend_log(&self) {
        let Some(log) = self.log() else { return };
        let length = || std::fs::metadata(&log).expect("the log of a server").len();
        let before = length();
        if before == 0 {
            return;
        }
        let mut check = Command::new("redis-check-aof");
        let check = check.arg("--fix").arg(&log).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = check.spawn().expect("redis-check-aof runs");
        // Whether it may cut it asks only where there is something to cut.
        let _ = child.stdin.take().expect("a pipe").write_all(b"y\n");
        let output = child.wait_with_output().expect("redis-check-aof ends");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "redis-check-aof: {said}");
        let cut = before - length();
        if 0 < cut {
            eprintln!("{cut} bytes of a transaction were cut off the server's log");
        }
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
        // Some listen on the port a little later than on the socket.
        let answers = || {
            UnixStream::connect(self.socket()).is_ok()
                && (self.port == 0 || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok())
        };
        while !done(answers()) {
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

/// Reads what `INFO replication` says.
fn are_online(info: &str, n: usize) -> bool {
    info.contains(&format!("connected_slaves:{n}\r\n")) && info.matches("state=online").count() == n
}

/// What makes a store one of its own.
fn own_prefix() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("prefix=t{}", LAST.fetch_add(1, Ordering::Relaxed))
}

/// A port that nobody listens on, below those that the system gives to connections. Processes begin far from each other, by the
/// golden ratio: a server that is down for a while must find its port free.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 12_000;
    const PORTS: u16 = 20_000;
    let begin = (u64::from(std::process::id()) * 12_361 % u64::from(PORTS)) as u16;
    let ports = (0..PORTS).map(|_| FIRST + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS);
    let mut free = ports.filter(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    free.next().expect("a port is free")
}
