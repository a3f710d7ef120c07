//! A broker of RabbitMQ for tests: a real one, of this test binary alone, with names, ports and files of its own; the one
//! that the machine may have is left alone.
//!
//! A shell stands between: it kills the broker and removes the folder as soon as its input ends, which the system sees to
//! however this process ends. Start-up takes seconds, so that tests share one.
#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long a broker may take to answer: some 5 s of work, on a machine that does much else.
const START_MAX: Duration = Duration::from_mins(2);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(20);
/// The longest body that it takes, in bytes: less than the longest payload, so that there is something it does not take.
pub(crate) const BODY_MAX: usize = 128 * 1024;
/// Where its programs are; those on the path change the user first.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";
/// Whom it lets in, and by which password.
const USER: &str = "punctual";

/// Starts the server of node names, then a broker for each line that it reads, and says its process id. It must outlive
/// whoever listens to it.
const GUARD: &str = r#"
    trap '' HUP INT PIPE TERM
    folder=$1; shift
    epmd -address 127.0.0.1 </dev/null >/dev/null 2>&1 & names=$!
    while read -r _; do "$@" </dev/null >>"$folder/out" 2>&1 & broker=$!; echo "$broker"; done
    kill -KILL "$broker" "$names" 2>/dev/null; wait; rm -rf "$folder"
"#;

/// A running broker.
#[derive(Debug)]
pub(crate) struct Broker {
    folder: PathBuf,
    guard: Child,
    /// What the guard says.
    says: BufReader<ChildStdout>,
    pid: u32,
    port: u16,
    /// What tells its programs apart from those of another broker.
    variables: Vec<(&'static str, String)>,
}

impl Broker {
    /// Starts one, and comes back when it answers.
    pub(crate) fn start() -> Self {
        let server = Path::new(PROGRAMS).join("rabbitmq-server");
        assert!(server.exists(), "these tests need {}: apt-get install rabbitmq-server", server.display());
        let folder =
            tempfile::Builder::new().prefix("punctual-rabbitmq-").tempdir().expect("a temporary folder");
        let folder = folder.keep();
        let [port, names_port, nodes_port] = [(); 3].map(|()| free_port());
        let write = |name: &str, text: String| {
            let file = folder.join(name);
            fs::write(&file, text).expect("a file in a new folder");
            file.display().to_string()
        };
        let settings = write(
            "rabbitmq.conf",
            format!(
                "listeners.tcp.1 = 127.0.0.1:{port}\ndefault_user = {USER}\ndefault_pass = {USER}\nmax_message_size = {BODY_MAX}\n"
            ),
        );
        let at = |name: &str| folder.join(name).display().to_string();
        let variables = vec![
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("ERL_EPMD_PORT", names_port.to_string()),
            // The cookie is there.
            ("HOME", at("")),
            ("RABBITMQ_CONFIG_FILE", settings),
            ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
            ("RABBITMQ_DIST_PORT", nodes_port.to_string()),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", write("plugins", "[].\n".to_owned())),
            ("RABBITMQ_LOG_BASE", at("log")),
            ("RABBITMQ_MNESIA_BASE", at("data")),
            ("RABBITMQ_NODENAME", "punctual@localhost".to_owned()),
            // Nobody waits busily for work: tests share few cores.
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none".to_owned(),
            ),
            // Then the shells on the way to it don't stay, and its process id is the guard's child's.
            ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
        ];
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).arg(&folder).arg(server);
        command.envs(variables.iter().cloned()).env_remove("NOTIFY_SOCKET").current_dir(&folder);
        // Not in the terminal's group: who interrupts the tests ends them first, and that ends the broker.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = command.spawn().expect("a shell starts");
        let says = BufReader::new(guard.stdout.take().expect("its output is piped"));
        let mut broker = Self { folder, guard, says, pid: 0, port, variables };
        broker.restart();
        broker
    }

    /// Where it listens.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Its address, for who is let in.
    pub(crate) fn url(&self) -> String {
        Self::url_by(self.port)
    }

    /// The same by way of another port of this machine.
    pub(crate) fn url_by(port: u16) -> String {
        format!("amqp://{USER}:{USER}@127.0.0.1:{port}/%2f")
    }

    /// Kills it as a power cut would; its files stay.
    pub(crate) fn kill(&mut self) {
        let status = Command::new("kill").args(["-KILL", &self.pid.to_string()]).status();
        assert!(status.expect("kill runs").success(), "could not kill the broker");
        self.until("it still answers after a SIGKILL", |answers| !answers);
    }

    /// Starts it again after [`kill`](Self::kill), on the same files; comes back when it answers.
    pub(crate) fn restart(&mut self) {
        let mut input = self.guard.stdin.as_ref().expect("it is open until the end");
        input.write_all(b"start\n").expect("the guard listens");
        let mut line = String::new();
        self.says.read_line(&mut line).expect("the guard says whom it guards");
        self.pid = line.trim().parse().expect("a process id");
        self.until("it does not answer", |answers| answers);
    }

    /// Makes it say that it is out of memory, which holds back all who publish, or ends that. Takes a second or two.
    pub(crate) fn set_memory_alarm(&self, is_on: bool) {
        // A share of the machine's memory: none at all, or what it is by default.
        self.control(&["set_vm_memory_high_watermark", if is_on { "0.0000001" } else { "0.4" }]);
    }

    /// Runs a command of `rabbitmqctl`.
    pub(crate) fn control(&self, words: &[&str]) {
        let mut command = Command::new(Path::new(PROGRAMS).join("rabbitmqctl"));
        let command = command.args(words).envs(self.variables.iter().cloned()).current_dir(&self.folder);
        let output = command.stdin(Stdio::null()).output().expect("rabbitmqctl runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rabbitmqctl {words:?}: {said}");
    }

    fn until(&self, otherwise: &str, done: impl Fn(bool) -> bool) {
        let begin = Instant::now();
        while !done(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()) {
            if START_MAX < begin.elapsed() {
                let log = fs::read_to_string(self.folder.join("out")).unwrap_or_default();
                panic!("rabbitmq-server: {otherwise}\n{log}");
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        drop(self.guard.wait());
    }
}

/// A port that nobody listens on, below those that the system gives to connections and those of the tests' other servers.
/// Processes begin at different ones.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 6_000;
    const PORTS: u16 = 5_000;
    let begin = (std::process::id() as u16).wrapping_mul(97) % PORTS;
    let ports = (0..PORTS).map(|_| FIRST + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS);
    let mut free = ports.filter(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    free.next().expect("a port is free")
}
