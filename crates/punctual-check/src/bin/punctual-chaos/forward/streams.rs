//! A server of NATS JetStream for the drill, with a port and a folder of its own. A shell stands between, which kills it and
//! removes the folder as soon as its input ends.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{broker::free_port, drill::Outcome};

/// How long it may take to answer.
const START_MAX: Duration = Duration::from_mins(1);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(10);
/// The longest body that it takes, in bytes.
pub(super) const BODY_MAX: usize = 128 * 1024;

/// Starts a server for each line that it reads, and says its process id.
const GUARD: &str = r#"
    trap '' HUP INT PIPE TERM
    folder=$1; shift
    while read -r _; do "$@" </dev/null >>"$folder/log" 2>&1 & echo $!; done
    kill -KILL $! 2>/dev/null; wait; rm -rf "$folder"
"#;

pub(super) struct Streams {
    guard: Child,
    /// What the guard says.
    says: BufReader<ChildStdout>,
    pid: u32,
    port: u16,
}

impl Streams {
    pub(super) fn start() -> Outcome<Self> {
        let folder: PathBuf = tempfile::Builder::new().prefix("punctual-nats-").tempdir()?.keep();
        let port = free_port();
        let settings = folder.join("nats.conf");
        let data = folder.join("data");
        fs::write(
            &settings,
            format!(
                "listen: 127.0.0.1:{port}\nmax_payload: {BODY_MAX}\njetstream {{ store_dir: \"{}\" }}\n",
                data.display()
            ),
        )?;
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).arg(&folder).args(["nats-server", "-c"]).arg(settings);
        // Not in the terminal's group: who interrupts the drill ends it first, and that ends the server.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = command.spawn()?;
        let says = BufReader::new(guard.stdout.take().ok_or("its output is piped")?);
        let mut streams = Self { guard, says, pid: 0, port };
        streams.restart()?;
        Ok(streams)
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it as a power cut would; its files stay.
    pub(super) fn kill(&self) -> Outcome<()> {
        self.signal("KILL")?;
        self.until(false)
    }

    /// Starts it again, on the same files.
    pub(super) fn restart(&mut self) -> Outcome<()> {
        self.guard.stdin.as_ref().ok_or("it is open until the end")?.write_all(b"start\n")?;
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        self.pid = line.trim().parse()?;
        self.until(true)
    }

    /// Stops it for a while: it takes what is sent and answers nothing.
    pub(super) fn freeze(&self) -> Outcome<()> {
        self.signal("STOP")
    }

    /// Ends what [`freeze`](Self::freeze) began.
    pub(super) fn thaw(&self) -> Outcome<()> {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> Outcome<()> {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid.to_string()]).status()?;
        if status.success() { Ok(()) } else { Err(format!("could not send SIG{name} to nats-server").into()) }
    }

    fn until(&self, answers: bool) -> Outcome<()> {
        let begin = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() != answers {
            if START_MAX < begin.elapsed() {
                return Err("nats-server neither comes nor goes (apt-get install nats-server)".into());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        drop(self.guard.wait());
    }
}
