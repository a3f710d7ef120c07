//! Who holds a unique key (S4): taken by the insert or an operator's retry, freed by the end of its scope.

use rusqlite::{OptionalExtension, params};

use super::{
    fault::Step,
    job::{Columns, Job, Opts},
    place::End,
    sql::named,
    tx::{Tx, ms},
};
use crate::core::{
    id::JobId,
    job::{Scope, Unique},
    time::Timestamp,
};

const FILE: &str = include_str!("sql/unique.sql");
const HOLDER: &str = named(FILE, "holder");
const HOLD: &str = named(FILE, "hold");
const FREE: &str = named(FILE, "free");

/// Kind, group, concurrency key and key as one; lengths first, so that no two lists share an encoding.
pub(super) fn encode(
    kind: Option<&str>,
    group: Option<&str>,
    concurrency_key: Option<&str>,
    key: &str,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(kind.unwrap_or_default().len() + key.len() + 16);
    for part in [kind, group, concurrency_key, Some(key)] {
        bytes.push(u8::from(part.is_some()));
        // A name is at most 255 bytes; a longer one can't be stored, and can't be found either.
        bytes.extend_from_slice(&(part.unwrap_or_default().len() as u16).to_be_bytes());
        bytes.extend_from_slice(part.unwrap_or_default().as_bytes());
    }
    bytes
}

fn encoded(kind: &str, opts: &Opts, unique: &Unique) -> Vec<u8> {
    let concurrency_key = opts.concurrency.as_ref().map(|concurrency| concurrency.key.as_str());
    encode(unique.kind_of(kind), opts.group.as_deref(), concurrency_key, &unique.key)
}

/// Whoever holds a key.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) id: JobId,
    /// The job's record; a window survives it.
    pub(super) job: Option<Job>,
}

impl Tx<'_> {
    /// The holder of a key, if it is held now.
    pub(super) fn holder(&mut self, qid: i64, key: &[u8]) -> Step<Option<Holder>> {
        let read = self
            .conn
            .prepare_cached(HOLDER)?
            .query_row(params![qid, key], |row| {
                let mut c = Columns::new(row);
                Ok((c.id(0), c.optional(1, Columns::time)))
            })
            .optional()?;
        let Some((Some(id), until)) = read else { return Ok(None) };
        let job = self.job(id)?;
        let held = until.map_or(job.is_some(), |until| self.now < until);
        Ok(held.then_some(Holder { id, job }))
    }

    /// The holder of the key that these options of a job of this kind ask for.
    pub(super) fn holder_of(&mut self, qid: i64, kind: &str, opts: &Opts) -> Step<Option<Holder>> {
        match &opts.unique {
            Some(unique) => self.holder(qid, &encoded(kind, opts, unique)),
            None => Ok(None),
        }
    }

    /// Takes the key that these options of a job ask for; it must be free or void.
    pub(super) fn hold_key(
        &self,
        qid: i64,
        (id, kind): (JobId, &str),
        opts: &Opts,
        created_at: Timestamp,
    ) -> Step<()> {
        let Some(unique) = &opts.unique else { return Ok(()) };
        let (scope, until) = match unique.scope {
            Scope::UntilDone => (0, None),
            Scope::UntilStart => (1, None),
            Scope::Window { .. } => (2, window_end(unique, created_at)),
        };
        let row = params![qid, encoded(kind, opts, unique), id.as_bytes(), scope, until.map(ms)];
        self.conn.prepare_cached(HOLD)?.execute(row)?;
        Ok(())
    }

    /// A job starts: a key until start is free from now on, and that it started is kept where an operator's retry or a
    /// cancel will ask for it.
    pub(super) fn free_key_at_start(&self, job: &mut Job) -> Step<()> {
        let Some(unique) = &job.opts.unique else { return Ok(()) };
        if unique.scope == Scope::UntilStart {
            self.free_key(job)?;
        }
        if !job.holds_until_done() && !job.past.started {
            job.past.started = true;
            job.put_past(self.conn)?;
        }
        Ok(())
    }

    /// A job ends: its key is free unless a window holds it, and that only an end before the start breaks.
    pub(super) fn free_key_at_end(&self, job: &Job, how: End) -> Step<()> {
        match &job.opts.unique {
            Some(Unique { scope: Scope::Window { .. }, .. }) if how == End::Other || job.past.started => {
                Ok(())
            }
            Some(_) => self.free_key(job),
            None => Ok(()),
        }
    }

    /// Frees the key if this job holds it.
    fn free_key(&self, job: &Job) -> Step<()> {
        if let Some(unique) = &job.opts.unique {
            let row = params![job.qid, encoded(&job.kind, &job.opts, unique), job.id.as_bytes()];
            self.conn.prepare_cached(FREE)?.execute(row)?;
        }
        Ok(())
    }
}

/// When a window ends; `None` for other scopes.
pub(super) fn window_end(unique: &Unique, created_at: Timestamp) -> Option<Timestamp> {
    match unique.scope {
        Scope::Window { window_ms } => {
            Some(Timestamp::saturating_from_ms(created_at.as_ms().saturating_add(window_ms)))
        }
        Scope::UntilDone | Scope::UntilStart => None,
    }
}
