//! `doctor`: the self-check of the store.

use std::time::Duration;

use tokio::time::timeout;

use super::{Space, SqliteStore, audit::says_out_of_order};
use crate::{
    core::error::Result,
    store::{
        Check, CheckLevel, Durability, IDENTITY_NONE,
        clock::{told_ahead, was_ahead},
        sqlite::engine::{
            ballast::is_full,
            fault::Step,
            file::{CHECKED_BYTES_MAX, WAL_KEPT_BYTES},
            place,
        },
    },
};

/// How long a look waits for a lock of another program before it says so.
const LOCKED_MAX: Duration = Duration::from_secs(4);
/// From this many free bytes on, `doctor` mentions them, if they are a quarter of the file.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// Makes a check with what was found and, if something is wrong, what to try.
fn check(level: CheckLevel, name: &'static str, text: String, fix: Option<&str>) -> Check {
    Check { level, name: name.into(), text, fix: fix.map(str::to_owned) }
}

fn ok(name: &'static str, text: String) -> Check {
    check(CheckLevel::Ok, name, text, None)
}

pub(super) async fn examine(store: &SqliteStore) -> Result<Vec<Check>> {
    let (bytes, wal_bytes) = store.database.sizes();
    if !store.options.read_only {
        // A write mends the log, if the disk works. Other checks write, too.
        let Ok(written) = timeout(LOCKED_MAX, store.write(1, 0, true, |_| Ok(()))).await else {
            let text = format!(
                "no write since {LOCKED_MAX:?}: another program holds the file locked, or the disk does not answer"
            );
            let fix = "end long transactions of other programs on the file";
            return Ok(vec![check(CheckLevel::Fail, "lock", text, Some(fix))]);
        };
        if let (Err(_), Err(error)) = (written, store.database.check_log()) {
            return Ok(vec![check(CheckLevel::Fail, "log", error.to_string(), error.hint())]);
        }
    }
    let mut checks = vec![
        ok("version", format!("SQLite {}", rusqlite::version())),
        file(store).await?,
        identity(store).await?,
        durability(store).await?,
        integrity(store, bytes).await?,
        clock(store).await?,
        notifications(store),
        disk(store).await,
    ];
    checks.push(if let Err(error) = store.database.check_log() {
        check(CheckLevel::Fail, "log", error.to_string(), error.hint())
    } else if wal_bytes <= 2 * WAL_KEPT_BYTES.cast_unsigned() {
        ok("log", format!("write-ahead log of {} KiB", wal_bytes / 1_024))
    } else {
        let text = format!(
            "write-ahead log of {} MiB: a reader still uses an old state of the file",
            wal_bytes >> 20
        );
        check(CheckLevel::Warn, "log", text, Some("end long read transactions of other programs on the file"))
    });
    Ok(checks)
}

/// Checks where the file is, how large it is, and how much of it is free.
async fn file(store: &SqliteStore) -> Result<Check> {
    let Space { file_bytes, free_bytes, .. } = store.space().await?;
    if let Err(error) = place::check(store.database.path()) {
        return Ok(check(CheckLevel::Fail, "file", error.to_string(), error.hint()));
    }
    let text = format!("{}, {} KiB", store.database.path().display(), file_bytes / 1_024);
    if free_bytes < FREE_BYTES_MIN || free_bytes < file_bytes / 4 {
        return Ok(ok("file", text));
    }
    let text = format!("{text}, of which {} KiB are free for new jobs", free_bytes / 1_024);
    let fix = "run `punctual compact` to return them to the disk";
    Ok(check(CheckLevel::Ok, "file", text, Some(fix)))
}

/// Checks whether a new job finds room on the disk.
async fn disk(store: &SqliteStore) -> Check {
    if store.options.read_only {
        return ok("disk", "not tested: opened for reading only".to_owned());
    }
    if let Err(error) = store.check_room().await {
        return check(CheckLevel::Fail, "disk", error.to_string(), error.hint());
    }
    let ballast = store.database.ballast();
    let tried = tokio::task::spawn_blocking(move || ballast.try_again()).await;
    match tried.map_err(std::io::Error::other).and_then(|tried| tried) {
        Ok(()) => ok("disk", "has room for new jobs".to_owned()),
        Err(error) if is_full(&error) => {
            let fix = "free some space on its disk, or let jobs end: those that are stored still run";
            check(CheckLevel::Fail, "disk", "the disk is full".to_owned(), Some(fix))
        }
        Err(error) => ok("disk", format!("not tested: {error}")),
    }
}

/// Reports the identity of the store.
async fn identity(store: &SqliteStore) -> Result<Check> {
    let found = store.read_identity().await?;
    Ok(ok("identity", found.map_or_else(|| IDENTITY_NONE.to_owned(), |identity| identity.to_string())))
}

/// Reports the durability in force. The log is synced by the writer, at least with each checkpoint.
async fn durability(store: &SqliteStore) -> Result<Check> {
    if store.options.read_only {
        return Ok(ok("durability", "not known: opened for reading only".to_owned()));
    }
    let synchronous: i64 = store
        .write(1, 0, true, |tx| Ok(tx.conn.query_row("PRAGMA synchronous", [], |row| row.get(0))?))
        .await?;
    let name = store.options.durability.name();
    Ok(if 1 <= synchronous {
        let when = if store.options.durability == Durability::Full {
            "before each answer"
        } else {
            "with each checkpoint"
        };
        ok("durability", format!("{name}: the log is synced {when}"))
    } else {
        let text = format!("{name} is promised, but synchronous is {synchronous}");
        check(CheckLevel::Fail, "durability", text, Some("open the store again"))
    })
}

/// Runs SQLite's own check, if the file is small enough for it.
async fn integrity(store: &SqliteStore, bytes: u64) -> Result<Check> {
    if CHECKED_BYTES_MAX < bytes {
        let text = format!("not checked: over {} MiB", CHECKED_BYTES_MAX >> 20);
        let fix = "run `sqlite3 FILE 'PRAGMA integrity_check'` when there is time";
        return Ok(check(CheckLevel::Ok, "integrity", text, Some(fix)));
    }
    // A quick check does not see rows that are out of order.
    let check_all = "PRAGMA integrity_check(1)";
    let said: String =
        store.reader.aside(move |conn| Ok(conn.query_row(check_all, [], |row| row.get(0))?)).await?;
    Ok(if said == "ok" {
        ok("integrity", "integrity_check found nothing".to_owned())
    } else if says_out_of_order(&said) {
        check(CheckLevel::Fail, "integrity", said, Some("run `punctual audit --repair`"))
    } else {
        let fix = "restore a backup, or copy what can be read into a new file with `punctual recover NEW`";
        check(CheckLevel::Fail, "integrity", said, Some(fix))
    })
}

/// Checks whether the clock went back since the last use, which makes jobs late, or whether it was ahead before.
async fn clock(store: &SqliteStore) -> Result<Check> {
    let (now, seen, fence) =
        store.reader.read(|tx| -> Step<_> { Ok((tx.now, tx.seen()?, tx.last_fence()?)) }).await?;
    let (back, ahead) = (seen.since(now), was_ahead(fence, now));
    Ok(if back.as_secs() < 1 && ahead.as_secs() < 1 {
        ok("clock", "did not go back since the last reserve or settle, and was not ahead".to_owned())
    } else if back.as_secs() < 1 {
        let (text, fix) = told_ahead(ahead);
        check(CheckLevel::Warn, "clock", text, Some(fix))
    } else {
        let text = format!(
            "went back by {} s since the last reserve or settle; jobs are late by that",
            back.as_secs()
        );
        check(CheckLevel::Warn, "clock", text, Some("synchronise the clock of the machine (NTP)"))
    })
}

fn notifications(store: &SqliteStore) -> Check {
    if store.options.read_only {
        return ok("bell", "not tested: opened for reading only".to_owned());
    }
    let fix = "let all users that write the database write the folder, or remove it while no process uses it";
    match store.notifier.test() {
        Ok((0, _)) => ok("bell", "a message to itself arrived; no other process listens".to_owned()),
        Ok((others, answered)) if others == answered => {
            ok("bell", format!("other processes that listen: {others}; all of them answered"))
        }
        Ok((others, answered)) => {
            let text = format!(
                "other processes that listen: {others}; {answered} of them answered, the rest may be stopped or hang"
            );
            check(CheckLevel::Warn, "bell", text, Some("find a process that is stopped or hangs"))
        }
        Err(e) => {
            let text = format!("{e}; this process checks for new jobs every 20 ms instead");
            check(CheckLevel::Warn, "bell", text, Some(fix))
        }
    }
}
