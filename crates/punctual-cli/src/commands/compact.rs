//! `punctual compact`: returns the space of deleted jobs to the disk.

use std::{io::Write as _, time::Instant};

use punctual::{
    ErrorKind,
    store::{
        Store as _,
        sqlite::{Compacted, Space, SqliteStore},
    },
};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{json, size},
    times::span,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file of a store does not shrink when jobs are deleted, because new jobs reuse their space. This command rewrites the \
file without the unused space. Workers can keep running; their calls wait meanwhile. The command needs space for two copies \
of the remaining jobs: one in the folder of the file, one in SQLITE_TMPDIR, TMPDIR or /var/tmp. `punctual doctor` prints \
how much space could be returned.

Examples:
  punctual compact
  punctual compact --store sqlite:/var/lib/app/jobs.db --json")]
pub(crate) struct Compact {}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    compacted: Compacted,
    took_ms: u64,
}

/// Refuses a store that is not a file.
pub(super) fn check(url: &str) -> Result {
    if url.starts_with("sqlite:") {
        return Ok(());
    }
    Err(Failure::new(ErrorKind::Unsupported, "only a store in an SQLite file can be compacted")
        .why("a Redis server reuses the memory of deleted jobs by itself")
        .hint("--store sqlite:FILE"))
}

pub(super) async fn run(session: &mut Session) -> Result {
    let store = session.client.store();
    let store: &SqliteStore = store
        .as_any()
        .and_then(|store| store.downcast_ref())
        .expect("invariant: only a store in a file gets here");
    #[cfg(unix)]
    room::check(store.url(), store.space().await?)?;
    let began = Instant::now();
    let compacted = store.compact().await?;
    let took = began.elapsed();
    if session.format.is_json() {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        json(&mut session.out, &Answer { compacted, took_ms })?;
        return Ok(());
    }
    let Compacted { before, after } = compacted;
    let all = |space: &Space| size(space.file_bytes + space.log_bytes);
    writeln!(session.out, "{} before, {} after, in {}", all(&before), all(&after), span(took))?;
    if after.used_bytes < after.log_bytes {
        session.say("the log was not truncated, because a program still reads an old state of the file; the log is truncated when that program ends");
    }
    Ok(())
}

/// Whether the disk has room for what is written.
#[cfg(unix)]
mod room {
    use std::{
        env,
        os::unix::fs::MetadataExt as _,
        path::{Path, PathBuf},
    };

    use punctual::store::sqlite::Space;
    use rustix::fs::{Access, access, statvfs};

    use crate::{
        errors::{Failure, Result},
        output::size,
    };

    /// A folder that is written to, and the room on its disk.
    #[derive(Debug)]
    pub(super) struct Room {
        folder: PathBuf,
        device: u64,
        free_bytes: u64,
    }

    impl Room {
        /// Returns `None` if the free space is unknown; then SQLite finds out.
        fn of(folder: PathBuf) -> Option<Self> {
            let (about, disk) = (folder.metadata().ok()?, statvfs(&folder).ok()?);
            Some(Self {
                device: about.dev(),
                free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
                folder,
            })
        }
    }

    /// Checks that there is enough space. Otherwise the command would fill the disk before it fails.
    pub(super) fn check(url: &str, space: Space) -> Result {
        let path = url.strip_prefix("sqlite:").unwrap_or(url);
        let path = Path::new(path).canonicalize().unwrap_or_else(|_| path.into());
        let beside = path.parent().map(Path::to_owned).and_then(Room::of);
        let temporary = temporary_folder().and_then(Room::of);
        is_there(space.used_bytes, beside.into_iter().chain(temporary))
    }

    /// Where SQLite makes the first copy.
    fn temporary_folder() -> Option<PathBuf> {
        let named = ["SQLITE_TMPDIR", "TMPDIR"].into_iter().filter_map(env::var_os).map(PathBuf::from);
        let usual = ["/var/tmp", "/usr/tmp", "/tmp", "."].into_iter().map(PathBuf::from);
        let is_usable =
            |folder: &PathBuf| folder.is_dir() && access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok();
        named.chain(usual).find(is_usable)
    }

    /// Whether each folder has room for a copy of this size, also where they share a disk.
    fn is_there(bytes: u64, rooms: impl Iterator<Item = Room>) -> Result {
        let rooms: Vec<Room> = rooms.collect();
        for room in &rooms {
            let copies = rooms.iter().filter(|other| other.device == room.device).count() as u64;
            let needed = bytes.saturating_mul(copies);
            if room.free_bytes < needed {
                let (folder, free) = (room.folder.display(), size(room.free_bytes));
                return Err(Failure::store_full(format!(
                    "not enough space in {folder} to compact; nothing was changed"
                ))
                .why(format!("{} are needed, {free} are free", size(needed)))
                .hint(
                    "free some space, or set SQLITE_TMPDIR to a folder on another disk, for the first copy",
                ));
            }
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn room(folder: &str, device: u64, free_bytes: u64) -> Room {
            Room { folder: folder.into(), device, free_bytes }
        }

        #[test]
        fn two_copies_on_one_disk_need_the_room_of_both() {
            let rooms = |data, temporary| [room("/data", 1, data), room("/tmp", temporary, 10)].into_iter();
            assert!(is_there(10, rooms(10, 2)).is_ok());
            let refused = is_there(11, rooms(20, 2)).unwrap_err();
            assert_eq!((refused.exit(), refused.to_string().contains(" in /tmp ")), (5, true));
            let refused = is_there(10, rooms(19, 1)).unwrap_err();
            assert_eq!((refused.exit(), refused.to_string().contains(" in /data ")), (5, true));
            assert!(is_there(5, rooms(10, 1)).is_ok());
        }
    }
}
