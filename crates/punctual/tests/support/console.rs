//! A connection to a server of Redis on which a test types commands. It blocks, knows nothing of the store, and repairs
//! nothing.
#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::{
    fmt::Write as _,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// An open connection.
#[derive(Debug)]
pub(crate) struct Console {
    stream: BufReader<UnixStream>,
}

impl Console {
    /// Connects to the server that listens on a socket.
    pub(crate) fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Types a command, words apart; answers what the server says as text, a line for each part. A refusal is an error.
    pub(crate) fn say(&mut self, words: &[&str]) -> io::Result<String> {
        self.send(words)?;
        self.answer()
    }

    /// Forgets what was called, once nobody else has called anything for as long as `look`: who starts may have one more thing
    /// to say behind its first block. Answers whether that came before so many looks.
    pub(crate) fn until_quiet(&mut self, look: Duration, looks: u32) -> io::Result<bool> {
        for _ in 0..looks {
            self.say(&["CONFIG", "RESETSTAT"])?;
            std::thread::sleep(look);
            let mut seen = calls(&self.say(&["INFO", "commandstats"])?);
            seen.remove("config|resetstat");
            if seen.is_empty() {
                self.say(&["CONFIG", "RESETSTAT"])?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Types a command, and does not wait for its answer.
    pub(crate) fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            write!(text, "${}\r\n{word}\r\n", word.len()).expect("text grows");
        }
        self.stream.get_mut().write_all(text.as_bytes())
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.trim_end();
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let length = || rest.parse::<usize>().ok();
        match kind {
            "-" => Err(io::Error::other(rest.to_owned())),
            "$" => {
                let Some(length) = length() else { return Ok(String::new()) };
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            "*" => {
                let parts: io::Result<Vec<_>> = (0..length().unwrap_or(0)).map(|_| self.answer()).collect();
                Ok(parts?.join("\n"))
            }
            _ => Ok(rest.to_owned()),
        }
    }
}

/// How often each command was called, as `INFO commandstats` tells: `cmdstat_evalsha:calls=3,…`.
pub(crate) fn calls(stats: &str) -> std::collections::BTreeMap<String, u64> {
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    lines.filter_map(|(name, rest)| Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))).collect()
}
