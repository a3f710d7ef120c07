//! Runs the binary, and makes what it prints comparable.

use std::{
    ffi::OsStr,
    io::Write as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Ids that are known beforehand.
pub(crate) const A: &str = "019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f0a";
pub(crate) const B: &str = "019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f0b";
pub(crate) const C: &str = "019dd2f1-6a3b-7c44-8d21-0b3d5c1e9f0c";

/// Longer than anything here takes, however busy the machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A folder with a store.
pub(crate) struct Cli {
    folder: TempDir,
    /// The address of another store than the one in the folder.
    store: Option<String>,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Cli {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("punctual-cli-").tempdir().unwrap(), store: None }
    }

    /// Whose store is at this address.
    pub(crate) fn with_store(url: &str) -> Self {
        Self { store: Some(url.to_owned()), ..Self::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command with these arguments; its store is `punctual.db` in the folder, by default.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.command_of(OsStr::new(env!("CARGO_BIN_EXE_punctual")), args)
    }

    fn command_of<S: AsRef<OsStr>>(&self, program: &OsStr, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path())
            .env_remove("PUNCTUAL_STORE")
            .env("PUNCTUAL_TZ", "utc")
            .env("USER", "ana")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(url) = &self.store {
            command.env("PUNCTUAL_STORE", url);
        }
        command
    }

    /// Runs a command line; words are parted by spaces.
    pub(crate) fn run(&self, line: &str) -> Said {
        self.args(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a command line by another build of the program.
    pub(crate) fn run_as(&self, program: &OsStr, line: &str) -> Said {
        said(self.command_of(program, line.split_whitespace()).spawn().unwrap())
    }

    /// Runs a command with arguments that may hold spaces.
    pub(crate) fn args(&self, args: &[&str]) -> Said {
        said(self.command(args).spawn().unwrap())
    }

    /// Runs a command line with something to read.
    pub(crate) fn feed(&self, line: &str, stdin: impl AsRef<[u8]>) -> Said {
        let mut child = self.command(line.split_whitespace()).stdin(Stdio::piped()).spawn().unwrap();
        let (mut pipe, stdin) = (child.stdin.take().unwrap(), stdin.as_ref().to_vec());
        // On a thread of its own: both pipes may be full.
        let feeder = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
        let said = said(child);
        feeder.join().unwrap();
        said
    }

    /// What a command prints that has to succeed.
    pub(crate) fn ok(&self, line: &str) -> String {
        self.run(line).ok()
    }

    /// A JSON answer.
    pub(crate) fn json(&self, line: &str) -> serde_json::Value {
        let said = self.ok(&format!("{line} --json"));
        serde_json::from_str(&said).unwrap_or_else(|e| panic!("{line}: {e}: {said}"))
    }

    /// Waits until a job is in a state, and answers the job.
    pub(crate) fn wait_for(&self, id: &str, status: &str) -> serde_json::Value {
        wait(
            || Some(self.json(&format!("show {id}"))).filter(|job| job["status"] == status),
            || format!("{id} never became {status}: {}", self.json(&format!("show {id}"))),
        )
    }

    /// Waits until a job is done or dead, and answers the job.
    pub(crate) fn wait_for_end(&self, id: &str) -> serde_json::Value {
        wait(
            || {
                Some(self.json(&format!("show {id}")))
                    .filter(|job| job["status"] == "done" || job["status"] == "dead")
            },
            || format!("{id} did not end: {}", self.json(&format!("show {id}"))),
        )
    }

    /// Waits until a file is there, and answers its text.
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        let read = || std::fs::read_to_string(self.path(name)).ok().filter(|text| text.ends_with('\n'));
        wait(read, || format!("{name} was never written"))
    }
}

/// Looks again and again until there is something to see.
pub(crate) fn wait<T>(look: impl Fn() -> Option<T>, complaint: impl Fn() -> String) -> T {
    let begin = Instant::now();
    loop {
        match look() {
            Some(found) => return found,
            None if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            None => panic!("{}", complaint()),
        }
    }
}

/// What a child says until it ends.
pub(crate) fn said(child: Child) -> Said {
    let output = child.wait_with_output().unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Said {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.out
    }

    /// It failed with this exit code, this code among the words, and this beginning.
    #[track_caller]
    pub(crate) fn fails(&self, exit: i32, code: &str, message: &str) {
        assert_eq!(self.code, Some(exit), "{self:#?}");
        assert!(self.err.starts_with(&format!("error: {message}")), "{self:#?}");
        assert!(self.err.contains(&format!("\n  code  {code} (exit {exit})\n")), "{self:#?}");
    }

    /// The arguments were no command line.
    #[track_caller]
    pub(crate) fn is_usage(&self, word: &str) {
        assert_eq!(self.code, Some(2), "{self:#?}");
        assert!(self.err.contains(word), "{self:#?}");
    }

    /// Every line as JSON.
    pub(crate) fn lines(&self) -> Vec<serde_json::Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
            .collect()
    }
}

/// The text with every time as `TIME`.
pub(crate) fn masked(text: &str) -> String {
    // Near midnight a time is shown with its date.
    let shapes = [("dddd-dd-dd dd:dd:dd", "TIME"), ("dd:dd:dd", "TIME")];
    let mut masked = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let shape = shapes.iter().find(|(shape, _)| {
            rest.len() >= shape.len()
                && rest
                    .bytes()
                    .zip(shape.bytes())
                    .all(|(b, s)| if s == b'd' { b.is_ascii_digit() } else { b == s })
        });
        if let Some((shape, name)) = shape {
            masked.push_str(name);
            rest = &rest[shape.len()..];
        } else {
            masked.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    masked
}
