//! The tables: migrations that are only ever appended.

use std::{cmp::Ordering, path::Path};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params, types::Value};

use crate::{
    core::{
        digest::group_digest,
        error::{Error, ErrorKind, Result},
    },
    store::{
        Identity,
        sqlite::{
            engine::{
                fault::{self, Step},
                sql::named,
                tx::int,
            },
            state::{codec::Opts, groups::PUT_GROUPED, places::LeaseRow},
        },
    },
};

const FILE: &str = include_str!("../sql/schema.sql");
const WITH_OPTIONS: &str = named(FILE, "with_options");
const LEAVE_DUE: &str = named(FILE, "leave_due");
const RETURN_TO: &str = named(FILE, "return_to");
const IS_KEYED: &str = named(FILE, "is_keyed");
const RUN: &str = named(FILE, "run");
const FILE_GROUP: &str = named(FILE, "file_group");
const NOTE_GROUPS: &str = named(FILE, "note_groups");

/// What [`version`] returns for a file that has tables, but no longer says of which version.
const LOST: i64 = -1;
const TABLES: &str = named(FILE, "tables");
const VERSION: &str = named(FILE, "version");
const PUT_VERSION: &str = named(FILE, "put_version");
const IDENTITY: &str = named(FILE, "identity");
const PUT_IDENTITY: &str = named(FILE, "put_identity");

/// Each entry migrates a file from the version of its position to the next one. The bytes of a statement never change, not even a comment in it:
/// [`has_newest_tables`] compares them with those of older files.
const MIGRATIONS: &[&str] = &[
    include_str!("../sql/0001_init.sql"),
    include_str!("../sql/0002_doc.sql"),
    include_str!("../sql/0003_gate.sql"),
    include_str!("../sql/0004_tool.sql"),
    include_str!("../sql/0005_group.sql"),
    include_str!("../sql/0006_result.sql"),
    include_str!("../sql/0007_lasts.sql"),
];

/// The version from which on jobs with a group wait in their own table.
const GROUPS: i64 = 5;

/// Migrates the file to this version's schema. Refuses a newer one, because this version would break its guarantees.
pub(crate) fn migrate(conn: &mut Connection, path: &Path) -> Result<()> {
    let failed = |e| fault::error("prepare the tables in", path, e);
    let newest = int(MIGRATIONS.len());
    if version(conn).map_err(failed)? == newest {
        return Ok(());
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Read again under the lock: another process may have migrated it.
    let mut found = version(&tx).map_err(failed)?;
    if found == LOST {
        if !has_newest_tables(&tx).map_err(failed)? {
            return Err(lost(path));
        }
        found = newest;
    }
    let todo = usize::try_from(found).ok().and_then(|done| MIGRATIONS.get(done..));
    let Some(todo) = todo else {
        return Err(outdated(&path.display().to_string(), found));
    };
    for migration in todo {
        tx.execute_batch(migration).map_err(failed)?;
    }
    if (1..GROUPS).contains(&found) {
        move_groups(&tx).map_err(failed)?;
    }
    tx.execute(PUT_VERSION, [newest]).map_err(failed)?;
    tx.commit().map_err(failed)
}

/// Returns the definitions of the tables and indices.
fn tables(conn: &Connection) -> rusqlite::Result<Vec<(String, Option<String>)>> {
    let rows = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    conn.prepare(TABLES)?.query_map([], rows)?.collect()
}

/// Returns whether the tables are those of this version.
fn has_newest_tables(conn: &Connection) -> rusqlite::Result<bool> {
    let new = Connection::open_in_memory()?;
    MIGRATIONS.iter().try_for_each(|migration| new.execute_batch(migration))?;
    Ok(tables(conn)? == tables(&new)?)
}

fn lost(path: &Path) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{path} does not say which schema version its tables have, and they are not those of this version"
        ),
    )
    .with_hint("something else removed it: open the file with the punctual that made it, or restore a backup")
}

/// Gives the store an identity, unless it has one. On a full disk it gets none. It then gets one when it is
/// requested, or at the next opening.
pub(crate) fn identify(conn: &Connection, path: &Path) -> Result<()> {
    match make_identity(conn).map_err(|e| fault::error("give an identity to", path, e)) {
        Err(e) if e.kind() == ErrorKind::StoreFull => Ok(()),
        made => made.map(drop),
    }
}

/// Returns the store's identity, and makes it if there is none.
pub(crate) fn make_identity(conn: &Connection) -> rusqlite::Result<Identity> {
    if let Some(identity) = identity(conn)? {
        return Ok(identity);
    }
    let number = fastrand::u64(..);
    conn.execute(PUT_IDENTITY, [number.cast_signed()])?;
    // Another process may have made it.
    Ok(identity(conn)?.unwrap_or(Identity::of(number)))
}

/// Returns the identity of the store.
pub(crate) fn identity(conn: &Connection) -> rusqlite::Result<Option<Identity>> {
    let number: Option<i64> = conn.prepare_cached(IDENTITY)?.query_row([], |row| row.get(0)).optional()?;
    Ok(number.map(|number| Identity::of(number.cast_unsigned())))
}

/// Refuses a transaction on a file with another schema version: another process has migrated it since it was opened.
pub(crate) fn check(conn: &Connection) -> Step<()> {
    let found: Option<i64> = conn.prepare_cached(VERSION)?.query_row([], |row| row.get(0)).optional()?;
    let found = found.unwrap_or_default();
    match found.cmp(&int(MIGRATIONS.len())) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(outdated(conn.path().unwrap_or("the file"), found).into()),
        Ordering::Less => Err(Error::new(
            ErrorKind::Corrupt,
            format!("{} has schema version {found} since it was opened", conn.path().unwrap_or("the file")),
        )
        .with_hint("start this program again")
        .into()),
    }
}

/// Refuses a file with another schema version, in read-only mode.
pub(crate) fn check_as_it_is(conn: &Connection, path: &Path) -> Result<()> {
    let found = version(conn).map_err(|e| fault::error("open", path, e))?;
    let shown = path.display();
    match found.cmp(&int(MIGRATIONS.len())) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(outdated(&shown.to_string(), found)),
        Ordering::Less if found == LOST => Err(Error::new(
            ErrorKind::Corrupt,
            format!("{shown} does not say which schema version its tables have, and was opened for reading only"),
        )
        .with_hint("open the file once as a user who may write it: that mends it, if its tables are those of this version")),
        Ordering::Less => Err(Error::new(
            ErrorKind::Outdated,
            format!(
                "{shown} has schema version {found}, and was opened for reading only; nothing was changed"
            ),
        )
        .with_hint("open the file once as a user who may write it: that upgrades it")),
    }
}

/// Marks the rows of a recovered file as of the newest schema. Refuses rows of a version before [`GROUPS`], or of a newer one.
pub(crate) fn accept_recovered(conn: &Connection, path: &Path) -> Result<()> {
    let (newest, found) = (int(MIGRATIONS.len()), version(conn).unwrap_or(LOST));
    if found != LOST && !(GROUPS..=newest).contains(&found) {
        return Err(Error::new(
            ErrorKind::Outdated,
            format!(
                "{} has schema version {found}, and this punctual recovers versions {GROUPS} to {newest}",
                path.display()
            ),
        )
        .with_hint(if newest < found {
            "recover it with the punctual that last used it"
        } else {
            "restore a backup"
        }));
    }
    conn.execute(PUT_VERSION, [newest]).map(drop).map_err(|e| fault::error("recover", path, e))
}

fn outdated(path: &str, found: i64) -> Error {
    let newest = MIGRATIONS.len();
    Error::new(
        ErrorKind::Outdated,
        format!("{path} has schema version {found}, this punctual knows up to {newest}; nothing was changed"),
    )
    .with_hint("a newer punctual upgraded the file: start that version instead of this one")
}

/// Moves jobs with a group to their tables since version 5: waiting ones to their group, running ones to its runs.
pub(crate) fn move_groups(conn: &Connection) -> rusqlite::Result<()> {
    let mut leave_due = conn.prepare(LEAVE_DUE)?;
    let mut put_grouped = conn.prepare(PUT_GROUPED)?;
    let mut file_group = conn.prepare(FILE_GROUP)?;
    let mut return_to = conn.prepare(RETURN_TO)?;
    let mut is_keyed = conn.prepare(IS_KEYED)?;
    let mut run = conn.prepare(RUN)?;
    let mut with_options = conn.prepare(WITH_OPTIONS)?;
    let mut jobs = with_options.query([])?;
    while let Some(job) = jobs.next()? {
        let opts = job.get_ref(4)?.as_str().ok().and_then(|text| serde_json::from_str::<Opts>(text).ok());
        let Some(name) = opts.and_then(|opts| opts.group) else { continue };
        let gid = group_digest(&name);
        let [id, q, pri, run_at]: [Value; 4] = [job.get(0)?, job.get(1)?, job.get(2)?, job.get(3)?];
        // An invalid row has no entry to move.
        if 0 < leave_due.execute(params![q, pri, run_at, id])? {
            put_grouped.execute(params![q, gid, pri, run_at, id])?;
            file_group.execute(params![q, gid, name, run_at])?;
        }
        return_to.execute(params![q, pri, run_at, id, gid])?;
        if 0 < is_keyed.execute(params![id, LeaseRow::KEYED])? {
            run.execute(params![q, gid, id])?;
        }
    }
    conn.execute_batch(NOTE_GROUPS)
}

/// Returns the version of the file's schema; 0 before the first migration; [`LOST`] if something else removed it.
pub(crate) fn version(conn: &Connection) -> rusqlite::Result<i64> {
    let made = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'punctual_meta'";
    if conn.query_row(made, [], |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    Ok(conn.query_row(VERSION, [], |row| row.get(0)).optional()?.unwrap_or(LOST))
}
