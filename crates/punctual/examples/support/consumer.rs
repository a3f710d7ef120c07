//! A consumer that can be killed: this very program, started again as a process of its own.

use std::{
    io::{self, BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

/// Far longer than a consumer takes to say anything.
const PATIENCE: Duration = Duration::from_mins(1);

/// The process, seen from the one that started it.
pub(crate) struct Consumer {
    process: Child,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Consumer {
    /// Starts `program consumer ARGUMENTS`, and shows what it says behind its name.
    pub(crate) fn start(name: &'static str, arguments: &[&str]) -> io::Result<Self> {
        let mut program = Command::new(std::env::current_exe()?);
        program.arg("consumer").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = program.spawn()?;
        let said = process.stdout.take().expect("invariant: its output is piped");
        let (pass_on, lines) = mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                println!("{name}: {line}");
                let _ = pass_on.send(line); // nobody may be listening any more
            }
        });
        Ok(Self { process, lines })
    }

    /// Waits for a line that begins so, and answers what follows.
    pub(crate) async fn until_says(&mut self, begin: &str) -> String {
        loop {
            let line = timeout(PATIENCE, self.lines.recv()).await.ok().flatten();
            let line = line.unwrap_or_else(|| panic!("a consumer never said {begin:?}"));
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.to_owned();
            }
        }
    }

    /// Kills it with SIGKILL: it can neither finish nor give anything back.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }
}

impl Drop for Consumer {
    /// Lets go of it, and waits until it has ended.
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Whether this process was started as a consumer.
pub(crate) fn is_consumer() -> bool {
    std::env::args().nth(1).is_some_and(|word| word == "consumer")
}

/// Fires when the process that started this one lets go of it, or has died.
pub(crate) fn let_go() -> CancellationToken {
    let token = CancellationToken::new();
    thread::spawn({
        let token = token.clone();
        move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            token.cancel();
        }
    });
    token
}
