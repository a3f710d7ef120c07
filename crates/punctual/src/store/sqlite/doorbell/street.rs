//! The way to waiters of other processes: a folder of this user, with a datagram socket per process and, while somebody
//! waits, a sign per waiter. The sign is an empty file whose name says who, until when, and for which queues.
//!
//! Whoever rings takes a fitting sign down first: that is atomic, so each sign is answered once. A socket that refuses was
//! left behind by a killed process, and is removed by the sender that meets it. Nobody polls.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt},
        net::UnixDatagram,
    },
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak},
    thread,
    time::Duration,
};

use super::{Doorbell, Ring, hash};
use crate::time::Timestamp;

/// Longest path of a socket that every system takes.
const SOCKET_PATH_MAX: usize = 100;
/// A message: hops, waiter, queue, time.
const MESSAGE_BYTES: usize = 25;
/// Instead of a message: the process's own bell goes away, or tests itself.
const QUIT: &[u8] = b"quit";
const TEST: &[u8] = b"test";

/// The folder of one database, for one user.
#[derive(Debug)]
pub(crate) struct Street {
    /// `None`: there is no safe place for it.
    folder: Option<PathBuf>,
    /// This process's name on the street; random, so that a name is never used again.
    token: String,
    /// Listens since the first wait.
    listening: OnceLock<Result<(), String>>,
    /// Tests that arrived.
    arrived: Arc<(Mutex<u64>, Condvar)>,
}

impl Street {
    pub(super) fn new(database: &Path) -> Self {
        let name = hash(database.as_os_str().as_encoded_bytes());
        let token = format!("{:016x}", fastrand::u64(..));
        let folder = place().map(|(place, uid)| place.join(format!("punctual-{uid}-{name:016x}")));
        let folder =
            folder.ok().filter(|folder| folder.as_os_str().len() + 1 + token.len() <= SOCKET_PATH_MAX);
        Self { folder, token, listening: OnceLock::new(), arrived: Arc::default() }
    }

    /// Whether this process can be told.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.listening.get(), Some(Ok(())))
    }

    /// Begins to listen, at the first wait.
    pub(super) fn listen(&self, bell: &Arc<Doorbell>) {
        self.listening.get_or_init(|| self.open(Arc::downgrade(bell)).map_err(|e| e.to_string()));
    }

    fn open(&self, bell: Weak<Doorbell>) -> io::Result<()> {
        let folder =
            self.folder.as_ref().ok_or_else(|| io::Error::other("no private folder with a short path"))?;
        let socket = loop {
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => check_private(folder)?,
            }
            match UnixDatagram::bind(folder.join(&self.token)) {
                // The last one to leave removed the folder just now.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                bound => break bound?,
            }
        };
        remove_dead(folder);
        let arrived = Arc::clone(&self.arrived);
        thread::Builder::new()
            .name("punctual-doorbell".to_owned())
            .spawn(move || answer(&socket, &bell, &arrived))?;
        Ok(())
    }

    // ── signs ──

    pub(super) fn show(&self, id: u64, armed: Timestamp, queues: &[u64]) {
        if let Some(sign) = self.sign(id, armed, queues) {
            // Without a sign the waiter is not found by others, and its slices find the work.
            let _ = File::create(sign);
        }
    }

    pub(super) fn hide(&self, id: u64, armed: Timestamp, queues: &[u64]) {
        if let Some(sign) = self.sign(id, armed, queues) {
            let _ = fs::remove_file(sign);
        }
    }

    fn sign(&self, id: u64, armed: Timestamp, queues: &[u64]) -> Option<PathBuf> {
        let folder = self.folder.as_ref().filter(|_| self.is_open())?;
        let queues: String = queues.iter().map(|queue| short(*queue)).collect();
        Some(folder.join(format!("{}-{id:x}-{:x}-{queues}", self.token, armed.as_ms())))
    }

    // ── rings ──

    /// Rings one waiter of another process.
    pub(super) fn ring(&self, ring: Ring) {
        let Some(signs) = self.folder.as_ref().and_then(|folder| fs::read_dir(folder).ok()) else { return };
        for sign in signs.flatten() {
            let name = sign.file_name();
            let Some(other) = name.to_str().and_then(Sign::read) else { continue };
            let wanted = other.token != self.token && ring.at < other.armed && other.wants(ring.queue);
            if wanted
                && fs::remove_file(sign.path()).is_ok()
                && self.send(other.token, &message(other.id, ring))
            {
                return;
            }
        }
    }

    fn send(&self, token: &str, message: &[u8]) -> bool {
        let Some(path) = self.folder.as_ref().map(|folder| folder.join(token)) else { return false };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(message, &path)
        });
        match sent {
            Ok(_) => true,
            Err(e) => {
                if e.kind() == io::ErrorKind::ConnectionRefused {
                    // Left behind by a process that was killed.
                    let _ = fs::remove_file(path);
                }
                false
            }
        }
    }

    pub(super) fn test(&self) -> Result<(), String> {
        match self.listening.get() {
            Some(Ok(())) => {}
            Some(Err(e)) => return Err(e.clone()),
            None => return Err("it does not listen".to_owned()),
        }
        let (count, changed) = &*self.arrived;
        let before = *count.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.send(&self.token, TEST) {
            return Err("its socket takes no message".to_owned());
        }
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed
            .wait_timeout_while(count, Duration::from_secs(1), |count| *count == before)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.1.timed_out() { Err("a message to itself did not arrive".to_owned()) } else { Ok(()) }
    }
}

impl Drop for Street {
    fn drop(&mut self) {
        if self.is_open() {
            self.send(&self.token, QUIT);
            if let Some(folder) = &self.folder {
                let _ = fs::remove_file(folder.join(&self.token));
                // Goes only when it is empty.
                let _ = fs::remove_dir(folder);
            }
        }
    }
}

/// The listening thread: hands each message to the bell until that is gone.
fn answer(socket: &UnixDatagram, bell: &Weak<Doorbell>, arrived: &(Mutex<u64>, Condvar)) {
    let mut buffer = [0; MESSAGE_BYTES + 1];
    while let Ok(n) = socket.recv(&mut buffer) {
        match &buffer[..n] {
            QUIT => return,
            TEST => {
                *arrived.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                arrived.1.notify_all();
            }
            other => {
                let Some(bell) = bell.upgrade() else { return };
                if let Some((id, ring)) = read_message(other) {
                    bell.rung_from_outside(id, ring);
                }
            }
        }
    }
}

/// Removes sockets that killed processes left behind.
fn remove_dead(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        let knocked = || UnixDatagram::unbound().and_then(|socket| socket.connect(entry.path()));
        if is_socket && knocked().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn message(id: u64, ring: Ring) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[0] = ring.hops;
    bytes[1..9].copy_from_slice(&id.to_be_bytes());
    bytes[9..17].copy_from_slice(&ring.queue.to_be_bytes());
    bytes[17..].copy_from_slice(&ring.at.as_ms().to_be_bytes());
    bytes
}

fn read_message(bytes: &[u8]) -> Option<(u64, Ring)> {
    let (hops, rest) = <&[u8; MESSAGE_BYTES]>::try_from(bytes).ok()?.split_first()?;
    let number = |at: usize| Some(u64::from_be_bytes(rest.get(at..at + 8)?.try_into().ok()?));
    let ring = Ring { queue: number(8)?, at: Timestamp::saturating_from_ms(number(16)?), hops: *hops };
    Some((number(0)?, ring))
}

/// What the name of a sign says.
#[derive(Debug, PartialEq, Eq)]
struct Sign<'a> {
    token: &'a str,
    id: u64,
    armed: Timestamp,
    queues: &'a str,
}

impl<'a> Sign<'a> {
    fn read(name: &'a str) -> Option<Self> {
        let mut parts = name.split('-');
        let token = parts.next()?;
        let id = u64::from_str_radix(parts.next()?, 16).ok()?;
        let armed = Timestamp::saturating_from_ms(u64::from_str_radix(parts.next()?, 16).ok()?);
        Some(Self { token, id, armed, queues: parts.next()? })
    }

    fn wants(&self, queue: u64) -> bool {
        let short = short(queue);
        self.queues.as_bytes().chunks(short.len()).any(|other| other == short.as_bytes())
    }
}

/// Three digits of a queue's hash, so that 64 queues fit into a file name; who is meant in vain passes the ring on.
fn short(queue: u64) -> String {
    format!("{:03x}", queue & 0xfff)
}

/// Where this user's sockets may live, and the user's number: the session's folder where there is one, as that belongs to
/// the user alone whatever the environment says, else the folder for temporary files.
fn place() -> io::Result<(PathBuf, u32)> {
    let temporary = std::env::temp_dir();
    let probe = temporary.join(format!(".punctual-{:016x}", fastrand::u64(..)));
    // Without unsafe code a file of its own tells a process who it is.
    let uid = File::create_new(&probe).and_then(|file| file.metadata()).map(|meta| meta.uid());
    let _ = fs::remove_file(&probe);
    let uid = uid?;
    let session = PathBuf::from(format!("/run/user/{uid}"));
    let usable = fs::symlink_metadata(&session).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid);
    Ok((if usable { session } else { temporary }, uid))
}

/// Refuses a folder that another user made, or may write to.
fn check_private(folder: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(folder)?;
    let own = place()?.1;
    let others_may = meta.mode() & 0o077;
    if meta.is_dir() && meta.uid() == own && others_may == 0 {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} is not a private folder of this user", folder.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_and_a_sign_survive_their_way() {
        let ring =
            Ring { queue: hash(b"mail"), at: Timestamp::saturating_from_ms(1_795_000_000_000), hops: 3 };
        assert_eq!(read_message(&message(7, ring)), Some((7, ring)));
        assert_eq!(read_message(b"short"), None);

        let queues: String = [b"mail".as_slice(), b"bulk"].iter().map(|name| short(hash(name))).collect();
        let name = format!("00ff-1a-64-{queues}");
        let sign = Sign::read(&name).unwrap();
        assert_eq!((sign.token, sign.id, sign.armed.as_ms()), ("00ff", 26, 100));
        assert!(sign.wants(hash(b"mail")) && sign.wants(hash(b"bulk")) && !sign.wants(hash(b"other")));
        assert_eq!(Sign::read("0123456789abcdef"), None);
    }

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        for (mode, private) in [(0o700, true), (0o755, false), (0o770, false)] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check_private(folder.path()).is_ok(), private, "{mode:o}");
        }
    }
}
