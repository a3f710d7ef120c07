//! The way to waiters of other processes: a folder beside the database, `<database>-bell`. It has a datagram socket
//! per process and, while callers wait, a sign per waiter. The sign is an empty file whose name says which waiter,
//! until when, and for which queues.
//!
//! The folder is beside the database because all processes of a file share that place, whatever their users, mount
//! namespaces and environments. Exactly the users that can write the database can use the folder.
//!
//! A process that notifies first removes a fitting sign. That is atomic, so each sign is answered once. A socket that
//! refuses connections was left by a killed process, and the sender removes it. The listening thread checks once a
//! second whether its own socket still exists. If not, it creates the socket and the folder again.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown},
            net::UnixDatagram,
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, Once, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use super::{Notification, Notifier};
use crate::{
    core::time::Timestamp,
    store::sqlite::engine::file::{mode_as, share_as, with_suffix},
};

/// The longest path of a socket that every system accepts, in bytes.
const SOCKET_PATH_MAX: usize = 100;
/// A message: hops, waiter, queue, time.
const MESSAGE_BYTES: usize = 25;
/// Sent in place of a message when the process's own notifier is dropped.
const QUIT: &[u8] = b"quit";
/// Asks the receiving process for an answer. Ping and answer are followed by the token of their sender.
const PING: &[u8] = b"ping";
const PONG: &[u8] = b"pong";
/// How often the listening thread checks whether others can find its socket.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long `doctor` waits for the answers of other processes.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How many waiters wake by themselves for one time: one, and a spare.
const MINDED_BY: usize = 2;
/// How often the folder is created again if others remove it at that moment.
const OPEN_TRIES: u32 = 8;

/// The sockets and signs of one database.
#[derive(Debug)]
pub(crate) struct Peers {
    database: PathBuf,
    folder: PathBuf,
    /// The random name of this process's socket. It is never used again.
    token: String,
    /// Whether it has started to listen, at the first wait.
    started: Once,
    /// Whether this process can be notified now.
    open: AtomicBool,
    /// Why not, if so.
    trouble: Mutex<String>,
    /// The processes that answered the last test.
    answers: (Mutex<HashSet<String>>, Condvar),
}

/// The socket on which this process listens.
struct Socket {
    socket: UnixDatagram,
    inode: u64,
}

impl Peers {
    pub(crate) fn new(database: &Path) -> Self {
        Self {
            database: database.to_owned(),
            folder: with_suffix(database, "-bell"),
            token: format!("{:016x}", fastrand::u64(..)),
            started: Once::new(),
            open: AtomicBool::new(false),
            trouble: Mutex::default(),
            answers: Default::default(),
        }
    }

    /// Returns whether this process can be notified.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Starts to listen, at the first wait.
    pub(crate) fn listen(&self, notifier: &Arc<Notifier>) {
        self.started.call_once(|| {
            let socket = self.open();
            let notifier = Arc::downgrade(notifier);
            let spawned = thread::Builder::new()
                .name("punctual-notifier".to_owned())
                .spawn(move || answer(socket, &notifier));
            if let Err(e) = spawned {
                self.shut(&e);
            }
        });
    }

    /// Opens the socket of this process, and logs it if that changes something.
    fn open(&self) -> Option<Socket> {
        match self.bind() {
            Ok(socket) => {
                self.open.store(true, Ordering::Relaxed);
                self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clear();
                Some(socket)
            }
            Err(e) => {
                self.shut(&e);
                None
            }
        }
    }

    /// Notes that other processes cannot notify this one. Logs only the beginning.
    fn shut(&self, e: &io::Error) {
        self.open.store(false, Ordering::Relaxed);
        let said = e.to_string();
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *trouble != said {
            tracing::warn!(target: "punctual", folder = %self.folder.display(), error = %said,
                "other processes cannot notify this one of new jobs; it checks for them every 20 ms instead");
            *trouble = said;
        }
    }

    fn bind(&self) -> io::Result<Socket> {
        let mut tries = 0;
        let socket = loop {
            tries += 1;
            match DirBuilder::new().mode(0o700).create(&self.folder) {
                Ok(()) => share_as(&self.database, &self.folder)?,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    // Only its owner can follow a change of the database's mode.
                    let _ = share_as(&self.database, &self.folder);
                    check_place(&self.database, &self.folder)?;
                }
                Err(e) => return Err(e),
            }
            match self.way(&self.token).and_then(|way| UnixDatagram::bind(way.path)) {
                // The last process to leave has just removed the folder.
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < OPEN_TRIES => {}
                bound => break bound?,
            }
        };
        let path = self.folder.join(&self.token);
        share_socket(&self.database, &path)?;
        socket.set_read_timeout(Some(CHECK_EVERY))?;
        let inode = fs::symlink_metadata(path)?.ino();
        remove_dead(&self.folder);
        Ok(Socket { socket, inode })
    }

    /// Returns a path to a name in the folder that is short enough for a socket's address.
    fn way(&self, name: &str) -> io::Result<Way> {
        let path = self.folder.join(name);
        if path.as_os_str().len() <= SOCKET_PATH_MAX {
            return Ok(Way { path, _folder: None });
        }
        let folder = File::open(&self.folder)?;
        let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()).into();
        Ok(Way { path, _folder: Some(folder) })
    }

    /// Returns whether other processes still find this socket, and no other, under its name.
    fn is_there(&self, socket: &Socket) -> bool {
        fs::symlink_metadata(self.folder.join(&self.token)).is_ok_and(|meta| meta.ino() == socket.inode)
    }

    // ── signs ──

    pub(crate) fn show(&self, id: u64, armed: Timestamp, queues: &[u64]) {
        if let Some(sign) = self.sign(id, armed, queues) {
            // Without a sign other processes do not find the waiter. Its regular checks then find the work.
            let _ = File::create(sign);
        }
    }

    pub(crate) fn hide(&self, id: u64, armed: Timestamp, queues: &[u64]) {
        if let Some(sign) = self.sign(id, armed, queues) {
            let _ = fs::remove_file(sign);
        }
    }

    fn sign(&self, id: u64, armed: Timestamp, queues: &[u64]) -> Option<PathBuf> {
        let queues: String = queues.iter().map(|queue| short(*queue)).collect();
        let name = format!("{}-{id:x}-{:x}-{queues}", self.token, armed.as_ms());
        self.is_open().then(|| self.folder.join(name))
    }

    /// Returns whether two waiters of living processes that want all of these queues wake by themselves until then.
    /// With `own`, counts those whose names come before that of waiter `own`, which leaves two if many check at once.
    /// Otherwise counts those of other processes.
    pub(crate) fn others_mind(&self, own: Option<u64>, queues: &[u64], at: Timestamp) -> bool {
        let mut left = MINDED_BY;
        for sign in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = sign.file_name();
            let Some(other) = name.to_str().and_then(Sign::read) else { continue };
            let is_before = match own {
                Some(id) => (other.token, other.id) < (&*self.token, id),
                None => other.token != self.token,
            };
            if is_before && other.armed <= at && queues.iter().all(|queue| other.wants(*queue)) {
                if self.lives(other.token) {
                    left -= 1;
                } else {
                    let _ = fs::remove_file(sign.path());
                }
            }
            if left == 0 {
                return true;
            }
        }
        false
    }

    /// Returns whether a process listens under a name.
    fn lives(&self, token: &str) -> bool {
        self.way(token).and_then(|way| UnixDatagram::unbound()?.connect(way.path)).is_ok()
    }

    // ── notifications ──

    /// Notifies one waiter of another process; returns whether there was one.
    pub(crate) fn notify(&self, notification: Notification) -> bool {
        // Without the folder, no process listens.
        for sign in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = sign.file_name();
            let Some(other) = name.to_str().and_then(Sign::read) else { continue };
            let wanted =
                other.token != self.token && notification.at < other.armed && other.wants(notification.queue);
            if wanted
                && fs::remove_file(sign.path()).is_ok()
                && self.send(other.token, &message(other.id, notification))
            {
                return true;
            }
        }
        false
    }

    fn send(&self, token: &str, message: &[u8]) -> bool {
        let sent = self.way(token).and_then(|way| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to(message, way.path)
        });
        match sent {
            Ok(_) => true,
            Err(e) => {
                if e.kind() == io::ErrorKind::ConnectionRefused {
                    // Left by a killed process.
                    let _ = fs::remove_file(self.folder.join(token));
                }
                false
            }
        }
    }

    // ── tests ──

    /// Sends a message to each process that listens, including this one; returns how many others listen, and how many
    /// answered.
    pub(crate) fn test(&self) -> Result<(usize, usize), String> {
        if !self.is_open() {
            return Err(self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
        let answers = || self.answers.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers().clear();
        let ping = [PING, self.token.as_bytes()].concat();
        let names = fs::read_dir(&self.folder).map_err(|e| e.to_string())?;
        let names = names.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let asked: Vec<String> = names.filter(|name| !name.contains('-') && self.send(name, &ping)).collect();
        let has_all = |answers: &mut HashSet<String>| asked.iter().all(|token| answers.contains(token));
        let waited =
            self.answers.1.wait_timeout_while(answers(), ANSWERS_WITHIN, |answers| !has_all(answers));
        let answers = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !answers.contains(&self.token) {
            return Err("a message to itself did not arrive".to_owned());
        }
        let others = || asked.iter().filter(|token| **token != self.token);
        Ok((others().count(), others().filter(|token| answers.contains(*token)).count()))
    }

    /// Answers a test, or receives the answer to one.
    fn tested(&self, message: &[u8]) -> bool {
        let Some((what, token)) = message.split_at_checked(PING.len()) else { return false };
        let Ok(token) = std::str::from_utf8(token) else { return false };
        let is_token = token.len() == self.token.len() && token.bytes().all(|byte| byte.is_ascii_hexdigit());
        match what {
            PING if is_token => drop(self.send(token, &[PONG, self.token.as_bytes()].concat())),
            PONG if is_token => {
                self.answers.0.lock().unwrap_or_else(PoisonError::into_inner).insert(token.to_owned());
                self.answers.1.notify_all();
            }
            _ => return false,
        }
        true
    }
}

/// A path, and what must stay open while it is used.
struct Way {
    path: PathBuf,
    _folder: Option<File>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        if self.is_open() {
            self.send(&self.token, QUIT);
            let _ = fs::remove_file(self.folder.join(&self.token));
            // Removed only if it is empty.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Runs on the listening thread: passes each message on, and keeps the socket open, until the notifier is dropped.
fn answer(mut socket: Option<Socket>, notifier: &Weak<Notifier>) {
    let mut buffer = [0; MESSAGE_BYTES + 1];
    loop {
        let got = if let Some(open) = &socket {
            open.socket.recv(&mut buffer)
        } else {
            thread::sleep(CHECK_EVERY);
            Err(io::ErrorKind::TimedOut.into())
        };
        let Some(notifier) = notifier.upgrade() else { return };
        match got.map(|n| &buffer[..n]) {
            Ok(QUIT) => return,
            Ok(message) => {
                if !notifier.peers.tested(message)
                    && let Some((id, notification)) = read_message(message)
                {
                    notifier.notified_from_outside(id, notification);
                }
            }
            // While messages arrive, others find the socket.
            Err(e) if matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                keep_open(&notifier, &mut socket);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                notifier.peers.shut(&e);
                socket = None;
            }
        }
    }
}

/// Creates the socket and folder again if they were removed.
fn keep_open(notifier: &Notifier, socket: &mut Option<Socket>) {
    let peers = &notifier.peers;
    if !socket.as_ref().is_some_and(|socket| peers.is_there(socket)) {
        let was_open = socket.take().is_some();
        *socket = peers.open();
        if was_open && socket.is_some() {
            tracing::warn!(target: "punctual", folder = %peers.folder.display(),
                "the folder where processes notify each other was removed; it was made again");
        }
    }
    notifier.show_all();
}

/// Lets the users that can write the database write to a socket in the folder.
fn share_socket(database: &Path, path: &Path) -> io::Result<()> {
    let (wanted, found) = (fs::metadata(database)?, fs::symlink_metadata(path)?);
    let (uid, gid) = (Some(wanted.uid()), Some(wanted.gid()));
    if (uid, gid) != (Some(found.uid()), Some(found.gid())) {
        // Only root can change the owner. Another user can give the file to a group that it belongs to.
        let _ = lchown(path, uid, gid).or_else(|_| lchown(path, None, gid));
    }
    if wanted.mode() & 0o022 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode_as(wanted.mode(), false)))?;
    }
    Ok(())
}

/// Removes what killed processes left: their sockets, and signs without a socket.
fn remove_dead(folder: &Path) {
    let entries = || fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries() {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        let knocked = || UnixDatagram::unbound().and_then(|socket| socket.connect(entry.path()));
        if is_socket && knocked().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(entry.path());
        }
    }
    for entry in entries() {
        let name = entry.file_name();
        if let Some(sign) = name.to_str().and_then(Sign::read)
            && fs::symlink_metadata(folder.join(sign.token))
                .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn message(id: u64, notification: Notification) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[0] = notification.hops;
    bytes[1..9].copy_from_slice(&id.to_be_bytes());
    bytes[9..17].copy_from_slice(&notification.queue.to_be_bytes());
    bytes[17..].copy_from_slice(&notification.at.as_ms().to_be_bytes());
    bytes
}

fn read_message(bytes: &[u8]) -> Option<(u64, Notification)> {
    let (hops, rest) = <&[u8; MESSAGE_BYTES]>::try_from(bytes).ok()?.split_first()?;
    let number = |at: usize| Some(u64::from_be_bytes(rest.get(at..at + 8)?.try_into().ok()?));
    let notification =
        Notification { queue: number(8)?, at: Timestamp::saturating_from_ms(number(16)?), hops: *hops };
    Some((number(0)?, notification))
}

/// The contents of a sign's name.
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

/// Returns three digits of a queue's hash, so that 64 queues fit into a file name. A waiter that was notified by
/// mistake passes the notification on.
fn short(queue: u64) -> String {
    format!("{:03x}", queue & 0xfff)
}

/// Refuses a folder that could have been created by a user that cannot write the database.
fn check_place(database: &Path, folder: &Path) -> io::Result<()> {
    let (own, place) = (fs::metadata(database)?, fs::symlink_metadata(folder)?);
    let allowed = mode_as(own.mode(), true);
    let is_known = place.uid() == own.uid() || place.uid() == 0 || own.mode() & 0o022 != 0;
    if place.is_dir() && is_known && place.permissions().mode() & 0o777 & !allowed == 0 {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{} is not a folder of those who may write the database",
            folder.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::hash, *};

    #[test]
    fn a_message_and_a_sign_survive_their_way() {
        let notification = Notification {
            queue: hash(b"mail"),
            at: Timestamp::saturating_from_ms(1_795_000_000_000),
            hops: 3,
        };
        assert_eq!(read_message(&message(7, notification)), Some((7, notification)));
        assert_eq!(read_message(b"short"), None);

        let queues: String = [b"mail".as_slice(), b"bulk"].iter().map(|name| short(hash(name))).collect();
        let name = format!("00ff-1a-64-{queues}");
        let sign = Sign::read(&name).unwrap();
        assert_eq!((sign.token, sign.id, sign.armed.as_ms()), ("00ff", 26, 100));
        assert!(sign.wants(hash(b"mail")) && sign.wants(hash(b"bulk")) && !sign.wants(hash(b"other")));
        assert_eq!(Sign::read("0123456789abcdef"), None);
    }

    #[test]
    fn a_folder_that_more_may_enter_than_may_write_the_database_is_refused() {
        let beside = tempfile::tempdir().unwrap();
        let (database, folder) = (beside.path().join("jobs.db"), beside.path().join("jobs.db-bell"));
        fs::write(&database, "").unwrap();
        fs::create_dir(&folder).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (own, place, is_right) in [
            (0o600, 0o700, true),
            (0o600, 0o755, false),
            (0o640, 0o750, false),
            (0o660, 0o770, true),
            (0o660, 0o700, true),
            (0o660, 0o777, false),
            (0o666, 0o777, true),
        ] {
            set(&database, own);
            set(&folder, place);
            assert_eq!(check_place(&database, &folder).is_ok(), is_right, "{own:o} {place:o}");
        }
    }
}
