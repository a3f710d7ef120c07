//! The process between a worker and a command: this program again, one per command.
//!
//! It starts the command when it has all of the payload, reports how it ended, and ends everything that the command started
//! when the worker asks for it, or is gone itself. So SIGKILL leaves no command without its worker, and no command with a part
//! of its payload.
//!
//! ```text
//! worker ──8 bytes: the length──► payload ──► [END: SIGTERM, SIGKILL after a while] ──► end of file: SIGKILL at once
//!        ◄── "started PID\n" ◄── "ended STATUS\n", or "failed WHY\n"
//! ```
//!
//! The two talk over a socket, which is this process's stdin. stdout and stderr are the command's own. It knows no store.
//!
//! For a child that stays there is no payload. This process's stdout is a socket, which is the child's stdin, for both directions. The
//! child's stdout is its stderr, so that nothing that it prints gets between frames. All that it started ends with it.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Seek as _, Write as _},
    os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use punctual::limits::PAYLOAD_BYTES_MAX;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use crate::{
    family::{Family, Members},
    requests::Requests,
};

/// The first word of its command line. Behind it: the milliseconds between SIGTERM and SIGKILL, then the command.
pub(super) const NAME: &str = "supervise-command";
/// The same for a child that stays.
pub(super) const NAME_OF_CHILD: &str = "supervise-child";
/// Asks it to end the command.
pub(super) const END: u8 = b'e';
/// Beginnings of its lines.
pub(super) const STARTED: &str = "started ";
pub(super) const ENDED: &str = "ended ";
pub(super) const FAILED: &str = "failed ";

/// Runs it if that is what the command line says.
pub(crate) fn run_if_asked(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let name = words.nth(1)?;
    let stays = name == NAME_OF_CHILD;
    if !stays && name != NAME {
        return None;
    }
    let run = || -> io::Result<()> {
        let millis = words.next().and_then(|word| word.to_str()?.parse().ok());
        let kill_after = Duration::from_millis(millis.ok_or(io::ErrorKind::InvalidInput)?);
        let command: Vec<OsString> = words.collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(supervise(&command, kill_after, stays))
    };
    // Only the worker could read an error, and without it there is no reader.
    Some(if run().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn supervise(words: &[OsString], kill_after: Duration, stays: bool) -> io::Result<()> {
    // A signal to all processes of a service is for the worker, which decides about its commands.
    let _ignored = Requests::listen()?;
    let socket = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let mut worker = UnixStream::from_std(socket)?;
    let stdin = if stays {
        io::stdout().as_fd().try_clone_to_owned().map(Stdio::from)
    } else {
        read_payload(&mut worker).await.and_then(|payload| file_of(&payload)).map(Stdio::from)
    };
    let started = stdin.and_then(|stdin| {
        let mut command = Command::new(words.first().map_or(OsStr::new(""), OsString::as_os_str));
        command.args(words.get(1..).unwrap_or_default()).stdin(stdin);
        if stays {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        Family::start(&mut command, true)
    });
    let mut family = match started {
        Ok(family) => family,
        Err(e) => {
            let number = e.raw_os_error().unwrap_or_default();
            return worker.write_all(format!("{FAILED}{number} {e}\n").as_bytes()).await;
        }
    };
    // First of all: should this process be killed, the worker ends the group.
    worker.write_all(format!("{STARTED}{}\n", family.leader()).as_bytes()).await?;
    // Else what the command closes would stay open.
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;

    let mut asked = [0];
    let status = tokio::select! {
        biased;
        status = family.exited() => {
            // Processes that a command leaves when it exits by itself are not touched. A job of a child may not go on without it.
            if stays {
                family.end(Members::All, kill_after).await;
            }
            family.let_go();
            status
        }
        asked = worker.read(&mut asked) => {
            let is_asked = asked.is_ok_and(|n| 0 < n);
            family.end(Members::All, if is_asked { kill_after } else { Duration::ZERO }).await;
            let status = family.exited().await;
            family.let_go();
            status
        }
    };
    worker.write_all(format!("{ENDED}{}\n", status.into_raw()).as_bytes()).await
}

/// All of the payload, or an error if the worker is gone before.
async fn read_payload(worker: &mut UnixStream) -> io::Result<Vec<u8>> {
    let length = usize::try_from(worker.read_u64().await?).unwrap_or(usize::MAX);
    if PAYLOAD_BYTES_MAX < length {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut payload = vec![0; length];
    worker.read_exact(&mut payload).await?;
    Ok(payload)
}

/// Makes an unnamed file with the whole payload, so that no reader gets only a part.
fn file_of(payload: &[u8]) -> io::Result<File> {
    let mut file = unnamed()?;
    file.write_all(payload)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(target_os = "linux")]
fn unnamed() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    memfd_create("payload", MemfdFlags::CLOEXEC).map(File::from).or_else(|_| tempfile::tempfile())
}

#[cfg(not(target_os = "linux"))]
fn unnamed() -> io::Result<File> {
    tempfile::tempfile()
}
