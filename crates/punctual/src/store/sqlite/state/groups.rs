//! Groups (S15, S16): where their waiting jobs are, which group is served next, and what holds each of them back. The
//! rules are stated in the model's `groups.rs`.
//!
//! A group is *filed* where an index finds it once it can start a job:
//!
//! ```text
//! its first job is due and can start ──► coming ── let_in ──► active ── no job that is due and can start ──┐
//!                                          ▲  ▲                                                            │
//!    a run ends, or limits change ── blocked  └──────────────────────── coming, blocked, idle ◄────────────┘
//! ```
//!
//! Each event of a group touches it: a job arrives or leaves, a run starts or ends, it is paused. When blocked jobs
//! are re-checked, touched groups are filed again. So no call ever reads a group that cannot start anything. What
//! depends only on time is found by the time under which the group is filed. The filing is never trusted: before a
//! group is served, its limiter is checked.

use rusqlite::{OptionalExtension, Row, params, types::Value};

use crate::{
    core::{
        digest::group_digest,
        fair::{come, step},
        job::Priority,
        limits::{BATCH_MAX, CANDIDATES_EXTRA, GROUPS_EXTRA, REGROUP_MAX},
        time::Timestamp,
    },
    store::{
        GroupLimits, Order,
        sqlite::{
            engine::{
                fault::{Step, all_removed},
                sql::named,
                tx::{Q, Tx, due_time, instant, int, ms},
            },
            state::{
                codec::{Columns, Job},
                keys::Key,
                limits::Limiter,
            },
            verbs::reserve::{job_id, pick::DueRow},
        },
    },
};

const FILE: &str = include_str!("../sql/groups.sql");
pub(crate) const PUT_GROUPED: &str = named(FILE, "put");
pub(crate) const DELETE_GROUPED: &str = named(FILE, "delete");
pub(crate) const IS_GROUPED: &str = named(FILE, "is_waiting");
const FIRST_RUN_AT: &str = named(FILE, "first_run_at");
const HEAD_FIFO: &str = named(FILE, "head_fifo");
const HEAD_LIFO: &str = named(FILE, "head_lifo");
const FIRST_GROUPED: &str = named(FILE, "first_grouped");
const GROUPED: &str = named(FILE, "grouped");
const GROUP: &str = named(FILE, "group");
const GROUPS: &str = named(FILE, "groups");
const FIRST_AT: &str = named(FILE, "first_at");
const PUT: &str = named(FILE, "file");
const FORGET: &str = named(FILE, "forget");
const FORGET_IDLE: &str = named(FILE, "forget_idle");

/// Returns the digest of a job's group, if it has one. It is also used among the keys of running jobs.
pub(crate) fn group_of(job: &Job) -> Option<Key> {
    job.opts.group.as_deref().map(group_digest)
}

// ── what is stored ──

/// The state that a queue keeps for its groups, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActiveGroups {
    /// The tag of the group that was served last.
    time: i64,
    /// The tag of the ungrouped jobs; 0 if none was due.
    ungrouped: i64,
    /// When groups were last activated; later if a job that came since keeps a group active, or a group was found held
    /// back.
    seen: i64,
    /// How often the limits of its groups changed; 0 if it never had groups.
    version: i64,
}

impl ActiveGroups {
    /// Reads the four columns from `from` on.
    pub(crate) fn read(row: &Row<'_>, from: usize) -> Self {
        let mut c = Columns::new(row);
        Self {
            time: tag(c.int(from)),
            ungrouped: tag(c.int(from + 1)),
            seen: c.int(from + 2),
            version: c.int(from + 3).clamp(0, 1 << 62),
        }
    }

    /// Returns the values of its columns.
    pub(crate) const fn columns(self) -> [i64; 4] {
        [self.time, self.ungrouped, self.seen, self.version]
    }

    pub(crate) const fn has_groups(self) -> bool {
        0 < self.version
    }

    /// Returns the tag of a group that is activated.
    const fn come(self, weight: u32) -> i64 {
        come(self.time.cast_unsigned(), weight).cast_signed()
    }

    /// Returns the tag of the ungrouped jobs, if some were due.
    pub(crate) fn ungrouped(self) -> Option<i64> {
        (0 < self.ungrouped).then_some(self.ungrouped)
    }
}

/// The largest tag, and more than any time.
const AT_MAX: i64 = 1 << 62;

/// Brings an invalid tag into range. Valid tags stay far below the largest number.
fn tag(n: i64) -> i64 {
    n.clamp(0, AT_MAX)
}

/// Where a group is filed. The numbers are those in `punctual_group`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Active, by its tag.
    Active = 0,
    /// By when its first job is due and can start.
    Coming = 1,
    /// Its running jobs have reached its limit; by the number of its limits.
    Blocked = 2,
    /// It has no jobs, but its limiter has state; by when that can be forgotten.
    Idle = 3,
}

impl Place {
    const ALL: [Self; 4] = [Self::Active, Self::Coming, Self::Blocked, Self::Idle];

    /// An invalid number is read as a place that the next check corrects.
    fn read(n: i64) -> Self {
        usize::try_from(n).ok().and_then(|n| Self::ALL.get(n)).copied().unwrap_or(Self::Active)
    }

    /// Returns whether groups with waiting jobs are in this place.
    pub(crate) const fn has_jobs(self) -> bool {
        matches!(self, Self::Active | Self::Coming | Self::Blocked)
    }
}

/// A group with stored state, and where it is filed.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) gid: Key,
    pub(crate) name: String,
    now: Filed,
    stored: Option<Filed>,
}

/// The columns of `punctual_group` that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filed {
    place: Place,
    at: i64,
    limiter: Limiter,
}

impl Group {
    fn new(gid: Key, name: &str) -> Self {
        let limiter = Limiter { closed: 0, tat: 0, part: 0 };
        let now = Filed { place: Place::Idle, at: 0, limiter };
        Self { gid, name: name.to_owned(), now, stored: None }
    }

    /// Reads the columns of `group`; returns the key itself if it is invalid.
    fn read(row: &Row<'_>) -> rusqlite::Result<Result<Self, Value>> {
        let mut c = Columns::new(row);
        let gid: Value = row.get(0)?;
        let Some(key) = as_key(&gid) else { return Ok(Err(gid)) };
        let (place, at) = (c.int(2), c.int(3));
        let is_sound = !c.corrupt
            && usize::try_from(place).is_ok_and(|n| n < Place::ALL.len())
            && (0..=AT_MAX).contains(&at);
        let now = Filed { place: Place::read(place), at, limiter: Limiter::read(row, 4) };
        // What no `file()` wrote is written again by the next one.
        let stored = if is_sound { now } else { Filed { at: i64::MIN, ..now } };
        Ok(Ok(Self { gid: key, name: c.text(1), now, stored: Some(stored) }))
    }

    pub(crate) const fn place(&self) -> Place {
        self.now.place
    }

    /// Returns whether its row can be what `file()` wrote.
    fn is_sound(&self) -> bool {
        self.stored.is_none_or(|stored| stored.at != i64::MIN)
    }

    /// Returns its tag, if it is active.
    pub(crate) fn tag(&self) -> i64 {
        tag(self.now.at)
    }
}

/// Returns the digest in a value, if it is one.
pub(crate) fn as_key(value: &Value) -> Option<Key> {
    if let Value::Blob(blob) = value { Key::try_from(blob.as_slice()).ok() } else { None }
}

/// A row of `punctual_grouped`.
pub(crate) struct GroupedRow {
    gid: Value,
    pri: Value,
    run_at: Value,
    id: Value,
}

impl GroupedRow {
    /// Returns the job that it names, if that has a record.
    pub(crate) fn job(&self, tx: &mut Tx<'_>) -> Step<Option<Job>> {
        match &self.id {
            Value::Blob(id) => job_id(id).map_or(Ok(None), |id| tx.job(id)),
            _ => Ok(None),
        }
    }
}

impl Tx<'_> {
    // ── limits ──

    fn limits(&self, q: Q, group: &str) -> GroupLimits {
        self.at(q).settings.of_group(group)
    }

    /// Returns the instant from which a job of a group can start by the group's own limits. If it can now, it is a past
    /// one. `None` if a running job must end first.
    fn group_opens(&mut self, q: Q, name: &str, gid: &Key, limiter: Limiter) -> Step<Option<Timestamp>> {
        let limits = self.limits(q, name);
        if let Some(most) = limits.concurrency
            && self.run_already(self.at(q).qid, gid, most.into())?
        {
            return Ok(None);
        }
        Ok(Some(limiter.opening(limits.rate, self.now)))
    }

    /// Returns whether a job of a group can start now by the group's own limits.
    fn is_open_group(&mut self, q: Q, group: &Group) -> Step<bool> {
        let opens = self.group_opens(q, &group.name, &group.gid, group.now.limiter)?;
        Ok(opens.is_some_and(|opens| opens <= self.now))
    }

    /// Returns whether a job's group holds its jobs back now.
    pub(crate) fn is_group_closed(&mut self, q: Q, job: &Job) -> Step<bool> {
        let Some(name) = &job.opts.group else { return Ok(false) };
        let Some(group) = self.group(q, group_digest(name), Some(name))? else { return Ok(false) };
        Ok(!self.is_open_group(q, &group)?)
    }

    /// Pauses a group at the request of a run.
    pub(crate) fn close_group(&mut self, q: Q, name: &str, until: Timestamp) -> Step<()> {
        let gid = group_digest(name);
        if let Some(mut group) = self.group(q, gid, Some(name))? {
            group.now.limiter.close(until, self.now);
            self.write_group(q, &mut group)?;
        }
        self.touch_group(q, gid, Some(name));
        Ok(())
    }

    /// Ends the pause of a group at the request of an operator.
    pub(crate) fn open_group(&mut self, q: Q, name: &str) -> Step<()> {
        let gid = group_digest(name);
        if let Some(mut group) = self.group(q, gid, None)? {
            group.now.limiter.open();
            self.write_group(q, &mut group)?;
            self.touch_group(q, gid, Some(name));
        }
        Ok(())
    }

    // ── filing ──

    /// Returns the state of a group; none if no name says which group it is.
    pub(crate) fn group(&self, q: Q, gid: Key, name: Option<&str>) -> Step<Option<Group>> {
        let mut stmt = self.conn.prepare_cached(GROUP)?;
        let read = stmt.query_row(params![self.at(q).qid, gid], Group::read).optional()?;
        Ok(read.and_then(Result::ok).or_else(|| name.map(|name| Group::new(gid, name))))
    }

    /// Returns the groups of a place up to `at`, least first; for a row with an invalid key, that key.
    fn rows_of(&self, q: Q, place: Place, at: i64, n: usize) -> Step<Vec<Result<Group, Value>>> {
        let mut stmt = self.conn.prepare_cached(GROUPS)?;
        let rows = stmt.query_map(params![self.at(q).qid, place as i64, at, int(n)], Group::read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the groups of a place up to `at`, least first, to be filed again.
    fn groups(&self, q: Q, place: Place, at: i64, n: usize) -> Step<Vec<Group>> {
        let rows = self.rows_of(q, place, at, n)?;
        let mut groups = Vec::with_capacity(rows.len());
        for row in rows {
            match row {
                Ok(group) => groups.push(group),
                // Removed, because it would be met for ever.
                Err(gid) => {
                    all_removed(self.conn.prepare_cached(FORGET)?.execute(params![self.at(q).qid, gid])?, 1)?;
                }
            }
        }
        Ok(groups)
    }

    /// Returns when the first waiting job of a group is due.
    fn first_of(&self, q: Q, gid: &Key) -> Step<Option<i64>> {
        let mut stmt = self.conn.prepare_cached(FIRST_RUN_AT)?;
        let first: [Option<i64>; 3] = stmt.query_row(params![self.at(q).qid, gid], |row| {
            Ok([due_time(row, 0)?, due_time(row, 1)?, due_time(row, 2)?])
        })?;
        Ok(first.into_iter().flatten().min())
    }

    fn write_group(&mut self, q: Q, group: &mut Group) -> Step<()> {
        self.note_groups(q)?;
        if group.stored == Some(group.now) {
            return Ok(());
        }
        let qid = self.at(q).qid;
        let Filed { place, at, limiter: Limiter { closed, tat, part } } = group.now;
        let row = params![qid, group.gid, group.name, place as i64, at, closed, tat, part];
        self.conn.prepare_cached(PUT)?.execute(row)?;
        group.stored = Some(group.now);
        Ok(())
    }

    /// Files a group where it belongs; returns when its first job is due. `is_in`: it stays active if it can.
    pub(crate) fn file(&mut self, q: Q, group: &mut Group, is_in: bool) -> Step<Option<i64>> {
        let first = self.first_of(q, &group.gid)?;
        let (tag, limiter) = (group.tag(), group.now.limiter);
        let filed = match first {
            None => limiter.remembers(self.now).map(|until| (Place::Idle, until)),
            Some(first) => Some(match self.group_opens(q, &group.name, &group.gid, limiter)? {
                None => (Place::Blocked, self.at(q).active.version),
                Some(opens) => {
                    let seen = self.now_ms().max(self.at(q).active.seen);
                    if self.now < opens {
                        // That it is closed follows from the clock, too. If the clock goes back, the group is checked
                        // again.
                        self.active_mut(q).seen = seen;
                    }
                    let at = first.max(ms(opens));
                    // A job that was due at the last activation counts as due until the next one, even if the clock
                    // goes back. So does one that came later and keeps its group active.
                    if is_in && at <= seen {
                        let active = self.active_mut(q);
                        active.seen = active.seen.max(at);
                        (Place::Active, tag)
                    } else {
                        (Place::Coming, at)
                    }
                }
            }),
        };
        match filed {
            Some((place, at)) => {
                (group.now.place, group.now.at) = (place, at);
                self.write_group(q, group)?;
            }
            None if group.stored.is_some() => {
                self.conn.prepare_cached(FORGET)?.execute(params![self.at(q).qid, group.gid])?;
                group.stored = None;
            }
            None => {}
        }
        Ok(first)
    }

    /// Files the groups again that had an event.
    pub(crate) fn file_touched(&mut self) -> Step<()> {
        for ((q, gid), name) in self.take_touched_groups() {
            let Some(mut group) = self.group(q, gid, name.as_deref())? else { continue };
            let was_in = group.stored.is_some() && group.place() == Place::Active;
            self.file(q, &mut group, was_in)?;
            match group.place() {
                Place::Active => self.notify(q, self.now),
                Place::Coming => self.notify(q, instant(group.now.at)),
                Place::Blocked | Place::Idle => {}
            }
        }
        Ok(())
    }

    /// Files the first groups of a place again.
    fn file_all(&mut self, q: Q, place: Place) -> Step<()> {
        for mut group in self.groups(q, place, i64::MAX, REGROUP_MAX)? {
            self.file(q, &mut group, place == Place::Active)?;
        }
        Ok(())
    }

    /// Handles a clock that went back: jobs may not be due any more, and groups may be held back again.
    fn mind_the_clock(&mut self, q: Q) -> Step<()> {
        let now = self.now_ms();
        if std::mem::replace(&mut self.active_mut(q).seen, now) <= now {
            return Ok(());
        }
        // Both are read before one of them is moved, because they would not all fit in one place.
        let active = self.groups(q, Place::Active, i64::MAX, REGROUP_MAX)?;
        let coming = self.groups(q, Place::Coming, i64::MAX, REGROUP_MAX)?;
        for mut group in active.into_iter().chain(coming) {
            let is_in = group.place() == Place::Active;
            self.file(q, &mut group, is_in)?;
        }
        Ok(())
    }

    /// Notes that the limits of a queue's groups changed. Later reserves file the groups beyond the first ones.
    pub(crate) fn limits_changed(&mut self, q: Q) -> Step<()> {
        if !self.at(q).active.has_groups() {
            return Ok(());
        }
        self.active_mut(q).version += 1;
        for place in [Place::Active, Place::Coming, Place::Blocked] {
            self.file_all(q, place)?;
        }
        Ok(())
    }

    /// Notes that there are groups.
    fn note_groups(&mut self, q: Q) -> Step<()> {
        let active = self.active_mut(q);
        active.version = active.version.max(1);
        self.set_grouped()
    }

    /// Returns whether a group is filed as one with jobs.
    pub(crate) fn is_filed(&self, q: Q, gid: Key) -> Step<bool> {
        let group = self.group(q, gid, None)?;
        Ok(self.at(q).active.has_groups()
            && group.is_some_and(|group| group.is_sound() && group.place().has_jobs()))
    }

    /// Returns whether a group with stored state is filed where its jobs require.
    pub(crate) fn is_filed_right(&mut self, q: Q, gid: Key) -> Step<bool> {
        let Some(group) = self.group(q, gid, None)? else { return Ok(false) };
        let Filed { place, at, limiter } = group.now;
        if place.has_jobs() != self.first_of(q, &gid)?.is_some() {
            return Ok(false);
        }
        Ok(match place {
            Place::Blocked => {
                at < self.at(q).active.version || self.group_opens(q, &group.name, &gid, limiter)?.is_none()
            }
            Place::Active | Place::Coming | Place::Idle => true,
        })
    }

    // ── active groups ──

    /// Activates groups whose first job is due and can start, the longest-waiting first.
    pub(crate) fn let_in(&mut self, q: Q, n: usize) -> Step<()> {
        self.mind_the_clock(q)?;
        let older = self.at(q).active.version - 1;
        for mut group in self.groups(q, Place::Blocked, older, GROUPS_EXTRA)? {
            self.file(q, &mut group, false)?;
        }
        for mut group in self.groups(q, Place::Coming, self.now_ms(), n)? {
            if self.is_open_group(q, &group)? {
                // The filing says that its first job is due, so no check is needed.
                let weight = self.limits(q, &group.name).weight();
                let tag = self.at(q).active.come(weight);
                (group.now.place, group.now.at) = (Place::Active, tag);
                self.write_group(q, &mut group)?;
            } else {
                self.file(q, &mut group, false)?;
            }
        }
        Ok(())
    }

    /// Returns the active group that is served next. Deactivates those that cannot start anything, at most `stale` of
    /// them.
    pub(crate) fn first_active(&mut self, q: Q, stale: &mut usize) -> Step<Option<Group>> {
        while *stale < CANDIDATES_EXTRA {
            let Some(mut group) = self.groups(q, Place::Active, i64::MAX, 1)?.pop() else { return Ok(None) };
            if self.is_open_group(q, &group)? {
                return Ok(Some(group));
            }
            self.file(q, &mut group, true)?;
            *stale += 1;
        }
        Ok(None)
    }

    /// Returns the first job of a group that is due by an instant (S6), and its priority.
    pub(crate) fn head(&self, q: Q, group: &Group, due_by: Timestamp) -> Step<Option<(Priority, DueRow)>> {
        let queue = self.at(q);
        let mut head = self.conn.prepare_cached(match queue.settings.order {
            Order::Fifo => HEAD_FIFO,
            Order::Lifo => HEAD_LIFO,
        })?;
        for priority in Priority::ALL {
            let range = params![queue.qid, group.gid, priority as i64, ms(due_by)];
            if let Some(row) = head.query_row(range, DueRow::read).optional()? {
                return Ok(Some((priority, row)));
            }
        }
        Ok(None)
    }

    /// Deletes only the row of a group's job.
    pub(crate) fn drop_head(&self, q: Q, group: &Group, priority: Priority, row: &DueRow) -> Step<()> {
        let (run_at, id) = row.key();
        let row = params![self.at(q).qid, group.gid, priority as i64, run_at, id];
        all_removed(self.conn.prepare_cached(DELETE_GROUPED)?.execute(row)?, 1)
    }

    /// Charges the start of a job to its group.
    pub(crate) fn charge(&mut self, q: Q, group: &mut Group) {
        let limits = self.limits(q, &group.name);
        let tag = group.tag();
        self.active_mut(q).time = tag;
        group.now.at = tag + step(limits.weight()).cast_signed();
        group.now.limiter.spend(limits.rate, self.now);
    }

    /// Charges the start of a job to the ungrouped jobs.
    pub(crate) fn charge_ungrouped(&mut self, q: Q) {
        let active = self.active_mut(q);
        active.time = active.ungrouped;
        active.ungrouped = active.time + step(1).cast_signed();
    }

    /// Activates the ungrouped jobs if some are due again, and deactivates them otherwise.
    pub(crate) fn mind_ungrouped(&mut self, q: Q, is_due: bool) {
        let active = self.at(q).active;
        let ungrouped = if is_due { active.ungrouped().unwrap_or(active.come(1)) } else { 0 };
        self.active_mut(q).ungrouped = ungrouped;
    }

    // ── what is forgotten ──

    /// Forgets the state of groups without jobs if it is obsolete, in all queues.
    pub(crate) fn forget_limiters(&self) -> Step<()> {
        self.conn.prepare_cached(FORGET_IDLE)?.execute(params![self.now_ms(), int(BATCH_MAX)])?;
        Ok(())
    }

    // ── what comes next, and how much ──

    /// Returns when the first job of any group is due and can start, as far as groups are concerned.
    pub(crate) fn first_coming(&mut self, q: Q) -> Step<Option<Timestamp>> {
        let ActiveGroups { seen, version, .. } = self.at(q).active;
        if !self.at(q).active.has_groups() {
            return Ok(None);
        }
        // Blocked under earlier settings, it may not be under these.
        let was_blocked = self.first_at(q, Place::Blocked)?.is_some_and(|at| at < version);
        if self.now_ms() < seen {
            let first = self.first_coming_by_looking(q)?;
            return Ok(first.into_iter().chain(was_blocked.then_some(self.now)).min());
        }
        if was_blocked || self.first_at(q, Place::Active)?.is_some() {
            return Ok(Some(self.now));
        }
        let Some(first) = self.first_at(q, Place::Coming)?.map(instant) else { return Ok(None) };
        // Time alone can have closed a group since it was filed: see `let_in`. Nearly always, the first one is open.
        let mut opens: Option<Timestamp> = None;
        for n in [1, REGROUP_MAX] {
            for row in self.rows_of(q, Place::Coming, i64::MAX, n)? {
                // The call that comes for it removes the row.
                let Ok(group) = row else { return Ok(Some(first)) };
                let at = instant(group.now.at);
                // In the second pass, the first group comes again.
                if opens.is_some_and(|opens| opens <= at.max(self.now)) {
                    return Ok(opens);
                }
                let its = self.group_opens(q, &group.name, &group.gid, group.now.limiter)?;
                opens = opens.into_iter().chain(its.map(|its| its.max(at))).min();
            }
        }
        Ok(opens)
    }

    /// Returns the same by reading the jobs, because the filing may be wrong after the clock went back.
    fn first_coming_by_looking(&mut self, q: Q) -> Step<Option<Timestamp>> {
        let mut groups = self.rows_of(q, Place::Active, i64::MAX, REGROUP_MAX)?;
        groups.extend(self.rows_of(q, Place::Coming, i64::MAX, REGROUP_MAX)?);
        let mut first = None;
        for group in groups.into_iter().flatten() {
            let Some(due) = self.first_of(q, &group.gid)? else { continue };
            if let Some(opens) = self.group_opens(q, &group.name, &group.gid, group.now.limiter)? {
                first = first.into_iter().chain([opens.max(instant(due))]).min();
            }
        }
        Ok(first)
    }

    fn first_at(&self, q: Q, place: Place) -> Step<Option<i64>> {
        let mut stmt = self.conn.prepare_cached(FIRST_AT)?;
        let read = stmt.query_row(params![self.at(q).qid, place as i64], |row| due_time(row, 0));
        Ok(read.optional()?.flatten())
    }

    /// Returns when the first waiting job with a group is due, whatever holds it back.
    pub(crate) fn first_grouped(&self, q: Q) -> Step<Option<Timestamp>> {
        if !self.at(q).active.has_groups() {
            return Ok(None);
        }
        let mut stmt = self.conn.prepare_cached(FIRST_GROUPED)?;
        let first = stmt.query_row([self.at(q).qid], |row| due_time(row, 0)).optional()?;
        Ok(first.flatten().map(instant))
    }

    /// Returns the first `n` waiting jobs with a group, group by group.
    pub(crate) fn grouped_rows(&self, q: Q, n: usize) -> Step<Vec<GroupedRow>> {
        let mut stmt = self.conn.prepare_cached(GROUPED)?;
        let rows = stmt.query_map(params![self.at(q).qid, int(n)], |row| {
            Ok(GroupedRow { gid: row.get(0)?, pri: row.get(1)?, run_at: row.get(2)?, id: row.get(3)? })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Deletes only a row of a job with a group.
    pub(crate) fn drop_grouped(&self, q: Q, row: &GroupedRow) -> Step<()> {
        let key = params![self.at(q).qid, row.gid, row.pri, row.run_at, row.id];
        self.conn.prepare_cached(DELETE_GROUPED)?.execute(key)?;
        Ok(())
    }
}
