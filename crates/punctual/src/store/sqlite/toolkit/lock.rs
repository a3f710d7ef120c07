//! Locks, with one row each.

use rusqlite::{OptionalExtension, params};

use super::forget;
use crate::{
    core::{
        silence::Term,
        time::{Timestamp, ceil_ms},
    },
    store::{
        Held, LOCK_NOTIFICATION, LockOp, LockReply,
        sqlite::engine::{
            fault::Step,
            sql::named,
            tx::{Tx, instant, int, ms, term},
        },
        toolkit::TOOL_MEMORY,
    },
};

const FILE: &str = include_str!("../sql/lock.sql");
const GET: &str = named(FILE, "get");
const PUT: &str = named(FILE, "put");
const NOTE: &str = named(FILE, "note");
const REMOVE: &str = named(FILE, "remove");
const LIST: &str = named(FILE, "list");
const FORGET: &str = named(FILE, "forget");

/// The holding of a lock, or the last one, which has ended.
struct Holding {
    owner: [u8; 16],
    fence: i64,
    term: Term,
}

pub(crate) fn lock(tx: &mut Tx<'_>, op: &LockOp) -> Step<LockReply> {
    match op {
        LockOp::Acquire { name, owner, lease } => {
            let fence = match holding(tx, name)? {
                Some(mut is) if is.owner != owner.to_be_bytes() => {
                    if is.term.note(tx.now) {
                        tx.conn.prepare_cached(NOTE)?.execute(params![name, is.term.short.map(ms)])?;
                    }
                    return Ok(LockReply::Taken(is.tell(tx, name)));
                }
                Some(is) => is.fence,
                None => tx.next_fence()?,
            };
            let term = Term::new(tx.now.after(*lease), *lease);
            hold(tx, name, &Holding { owner: owner.to_be_bytes(), fence, term })
        }
        LockOp::Extend { name, owner, lease } => match last_holding(tx, name)? {
            Some(is) if is.owner == owner.to_be_bytes() && tx.now < is.end(tx).after(TOOL_MEMORY) => {
                let term = Term::new(tx.now.after(*lease), *lease);
                hold(tx, name, &Holding { term, ..is })
            }
            Some(is) if tx.now < is.end(tx) => Ok(LockReply::Taken(is.tell(tx, name))),
            _ => Ok(LockReply::Free),
        },
        LockOp::Release { name, owner } => {
            let Some(is) = last_holding(tx, name)? else { return Ok(LockReply::Free) };
            let is_held = tx.now < is.end(tx);
            if owner.is_some_and(|owner| is.owner != owner.to_be_bytes()) {
                return Ok(if is_held { LockReply::Taken(is.tell(tx, name)) } else { LockReply::Free });
            }
            // Also if it has ended: it must not be extended any more.
            tx.conn.prepare_cached(REMOVE)?.execute([name])?;
            if !is_held {
                return Ok(LockReply::Free);
            }
            tx.notify_named([LOCK_NOTIFICATION, name].concat());
            Ok(LockReply::Released)
        }
        LockOp::Show { name } => Ok(match holding(tx, name)? {
            None => LockReply::Free,
            Some(is) => LockReply::Taken(is.tell(tx, name)),
        }),
        LockOp::List { limit } => list(tx, *limit),
    }
}

fn holding(tx: &Tx<'_>, name: &str) -> Step<Option<Holding>> {
    Ok(last_holding(tx, name)?.filter(|is| tx.now < is.end(tx)))
}

fn last_holding(tx: &Tx<'_>, name: &str) -> Step<Option<Holding>> {
    let mut stmt = tx.conn.prepare_cached(GET)?;
    let read = stmt.query_row([name], |row| {
        let term = term(row, instant(row.get(2)?), 3);
        Ok(Holding { owner: row.get(0)?, fence: row.get(1)?, term })
    });
    Ok(read.optional()?)
}

fn hold(tx: &Tx<'_>, name: &str, is: &Holding) -> Step<LockReply> {
    let (until, lasts) = (ms(is.term.until), ceil_ms(is.term.lasts).cast_signed());
    tx.conn.prepare_cached(PUT)?.execute(params![name, is.owner, is.fence, until, lasts])?;
    forget(tx, FORGET)?;
    Ok(LockReply::Yours(is.tell(tx, name)))
}

fn list(tx: &Tx<'_>, limit: usize) -> Step<LockReply> {
    let mut stmt = tx.conn.prepare_cached(LIST)?;
    let rows = stmt.query_map(params![tx.now_ms(), int(limit + 1)], |row| {
        let until = term(row, instant(row.get(2)?), 3).end(tx.now);
        Ok(held(tx, row.get(0)?, row.get(1)?, until))
    })?;
    let mut locks = rows.collect::<Result<Vec<_>, _>>()?;
    let more = limit < locks.len();
    locks.truncate(limit);
    locks.retain(|held| tx.now < held.until);
    Ok(LockReply::Listed { locks, more })
}

/// Returns when the named lock is free: now, or at the end of its lease. `None` if the name is no lock's.
pub(crate) fn free_at(tx: &Tx<'_>, name: &str) -> Step<Option<Timestamp>> {
    let Some(name) = name.strip_prefix(LOCK_NOTIFICATION) else { return Ok(None) };
    Ok(Some(holding(tx, name)?.map_or(tx.now, |is| is.end(tx))))
}

impl Holding {
    /// Returns when it ends, as it looks now.
    fn end(&self, tx: &Tx<'_>) -> Timestamp {
        self.term.end(tx.now)
    }

    fn tell(&self, tx: &Tx<'_>, name: &str) -> Held {
        held(tx, name.to_owned(), self.fence, self.end(tx))
    }
}

fn held(tx: &Tx<'_>, name: String, fence: i64, until: Timestamp) -> Held {
    Held { name, fence: fence.cast_unsigned(), until, left: until.since(tx.now) }
}
