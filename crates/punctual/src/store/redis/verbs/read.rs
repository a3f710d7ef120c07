//! Reads: they change nothing, and hide ended jobs past their age.

use crate::{
    core::{
        error::Result,
        filter::Search,
        id::JobId,
        job::{JobRecord, State},
        limits::{BATCH_MAX, DUE_COUNT_MAX, LIST_BYTES_MAX},
        time::{Timestamp, ceil_ms},
    },
    store::{
        Counts, Histogram, List, ListCursor, Page, UniqueKey, Upcoming,
        clock::Clock,
        redis::{
            scripts::{
                RECORDS, SCRIPTS,
                bytes::Bytes,
                reply::{self, Reply},
            },
            sharded::shard::{Shard, digits},
            state::codec::{self, Record},
        },
    },
};

/// The most jobs of one slice of a listing.
const SLICE_MAX: usize = 256;

pub(crate) async fn now(shard: &Shard) -> Result<Timestamp> {
    if let Clock::Manual(clock) = &shard.clock {
        return Ok(clock.now());
    }
    let mut reply = Reply::of(shard.link.command(redis::cmd("TIME")).await?)?;
    let (seconds, micros) = (reply.number()?, reply.number()?);
    Ok(Timestamp::saturating_from_ms(seconds * 1_000 + micros / 1_000))
}

pub(crate) async fn get(
    shard: &Shard,
    id: Option<JobId>,
    key: Option<&UniqueKey>,
) -> Result<Option<JobRecord>> {
    let id = id.map_or_else(Vec::new, |id| id.as_bytes().to_vec());
    let digest = key.map_or_else(Vec::new, |key| codec::digest_of(key).to_vec());
    let mut reply = shard.ask(&SCRIPTS.get, &[], vec![id, digest]).await?;
    if reply.is_over() {
        return Ok(None);
    }
    let (id, rec) = (reply.bytes()?, Record::read(&mut reply)?);
    let (history, run) = (reply.bytes()?, reply.bytes()?);
    let id = Bytes(&id).id()?;
    // Its payload may be gone.
    let job = codec::decode(id, &rec, &history, &run).unwrap_or_else(|_| codec::husk(id, &rec, &history));
    Ok(Some(JobRecord { blocked: reply.number()? != 0, ..job }))
}

/// The places of jobs, in the order of a listing.
const PLACES: [u8; 3] = *b"tle";

/// The bytes of the longest member of a place: a blocked job's queue, mark, key, level, time, id, past, limit and
/// group.
const MEMBER_MAX: usize = 3 + 1 + 16 + 1 + 6 + 16 + 1 + 4 + 16;

/// The position of a listing: its place, and the member after which it continues.
struct Stand {
    place: usize,
    after: Vec<u8>,
}

impl Stand {
    fn read(cursor: &ListCursor) -> Result<Self> {
        let text = cursor.0.as_bytes();
        let place = text.first().and_then(|first| PLACES.iter().position(|place| place == first));
        let after: Option<Vec<u8>> = text
            .get(1..)
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .filter(|hex| hex.len() % 2 == 0 && hex.len() <= 2 * MEMBER_MAX)
            .and_then(|hex| {
                (0..hex.len())
                    .step_by(2)
                    .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
                    .collect()
            });
        match (place, after) {
            (Some(place), Some(after)) => Ok(Self { place, after }),
            _ => Err(ListCursor::unreadable()),
        }
    }

    fn cursor(&self) -> ListCursor {
        let mut text = char::from(PLACES[self.place]).to_string();
        text.extend(self.after.iter().map(|byte| format!("{byte:02x}")));
        ListCursor(text)
    }

    /// Goes on to the next place that can have what a filter needs; returns `false` if there is none.
    fn next(&mut self, wants: impl Fn(u8) -> bool) -> bool {
        self.after.clear();
        loop {
            self.place += 1;
            match PLACES.get(self.place) {
                Some(place) if wants(*place) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }
}

/// A page that is being read, slice by slice.
struct Reading {
    limit: usize,
    search: Search,
    page: Page,
    stand: Stand,
    /// The bytes of the jobs that were read.
    bytes: u64,
}

impl Reading {
    /// Reads the jobs of a slice; returns whether the page ends in it.
    fn slice(&mut self, reply: &mut Reply) -> Result<bool> {
        let page = &mut self.page;
        while !reply.is_over() {
            if page.jobs.len() == self.limit
                || page.searched == (page.jobs.len() + BATCH_MAX) as u64
                || LIST_BYTES_MAX <= self.bytes
                || self.search.is_spent()
            {
                page.next = Some(self.stand.cursor());
                return Ok(true);
            }
            self.stand.after = reply.bytes()?;
            let (id, rec) = (reply.bytes()?, Record::read(reply)?);
            let (history, run) = (reply.bytes()?, reply.bytes()?);
            let (id, note) = (Bytes(&id).id(), reply.number()?);
            page.searched += 1;
            self.bytes += (rec.len() + history.len()) as u64;
            // An entry without a record is skipped, and so is one that something else wrote.
            let Some(id) = id.ok().filter(|_| !rec.is_empty()) else { continue };
            let job =
                codec::decode(id, &rec, &history, &run).unwrap_or_else(|_| codec::husk(id, &rec, &history));
            let job = JobRecord { blocked: note == 2, ..job };
            if note != 1 && self.search.matches(&job, page.now) {
                page.jobs.push(job);
            }
        }
        Ok(false)
    }
}

pub(crate) async fn list(shard: &Shard, list: &List) -> Result<Page> {
    let states = list.filter.states();
    let wants = |place: u8| {
        states.as_ref().is_none_or(|states| {
            states.iter().any(|state| match state {
                State::Waiting => place == b't',
                State::Running => place == b'l',
                State::Done | State::Dead | State::Cancelled => place == b'e',
            })
        })
    };
    // More than one queue is searched among all.
    let queue = list.filter.queues().filter(|queues| queues.len() == 1).map(|mut queues| queues.remove(0));
    let queue = queue.unwrap_or_default().into_bytes();
    let mut stand = list.after.as_ref().map_or(Ok(Stand { place: 0, after: Vec::new() }), Stand::read)?;
    let is_empty = !wants(PLACES[stand.place]) && !stand.next(wants);
    let search = Search::new(&list.filter);
    let mut reading = Reading { limit: list.limit, search, page: Page::default(), stand, bytes: 0 };
    // First as many as can match, then more and more.
    let mut slice = list.limit;
    loop {
        // A full page only asks whether there is one more.
        let is_full = reading.page.jobs.len() == list.limit;
        slice = if is_full { 1 } else { slice.min(SLICE_MAX) };
        let place = PLACES.get(reading.stand.place).copied().unwrap_or(PLACES[0]);
        let args = vec![vec![place], reading.stand.after.clone(), queue.clone(), digits(slice as u64)];
        slice *= 4;
        let mut reply = shard.ask(&SCRIPTS.list, &[], args).await?;
        (reading.page.now, reading.page.total) = (reply.time()?, reply.number()?);
        if is_empty {
            return Ok(reading.page);
        }
        let is_more = reply.number()? != 0;
        // It can take long, and the caller's threads have other work.
        let compare = move || {
            let ended = reading.slice(&mut reply);
            (reading, ended)
        };
        let ended;
        (reading, ended) = shard.link.thread().compute(compare).await?;
        if ended? {
            return Ok(reading.page);
        }
        if is_more && reading.page.jobs.len() == list.limit {
            reading.page.next = Some(reading.stand.cursor());
            return Ok(reading.page);
        }
        if !is_more && !reading.stand.next(wants) {
            return Ok(reading.page);
        }
    }
}

/// Returns the number of jobs.
pub(crate) async fn total(shard: &Shard) -> Result<u64> {
    let mut cmd = redis::cmd("HLEN");
    cmd.arg(&shard.keys[RECORDS]);
    Ok(u64::try_from(reply::int(&shard.link.command(cmd).await?)?).unwrap_or_default())
}

/// Reads the counters in the answer of a script.
pub(crate) fn counts(reply: &mut Reply) -> Result<Counts> {
    Ok(Counts {
        waiting: reply.number()?,
        retrying: reply.number()?,
        due: reply.number()?.min(DUE_COUNT_MAX),
        running: reply.number()?,
        done: reply.number()?,
        dead: reply.number()?,
        cancelled: reply.number()?,
        bytes: reply.number()?,
        parts_away: 0,
    })
}

/// Adds the counters of two parts of the store.
pub(crate) fn sum(one: Counts, other: Counts) -> Counts {
    Counts {
        waiting: one.waiting + other.waiting,
        retrying: one.retrying + other.retrying,
        due: (one.due + other.due).min(DUE_COUNT_MAX),
        running: one.running + other.running,
        done: one.done + other.done,
        dead: one.dead + other.dead,
        cancelled: one.cancelled + other.cancelled,
        bytes: one.bytes + other.bytes,
        parts_away: one.parts_away + other.parts_away,
    }
}

pub(crate) async fn count(shard: &Shard, queue: Option<&str>) -> Result<Counts> {
    let name = queue.unwrap_or_default().as_bytes();
    if queue.is_some_and(str::is_empty) {
        return Ok(Counts::default());
    }
    let (mut counted, mut from) = (Counts::default(), Vec::new());
    loop {
        let mut reply = shard.ask(&SCRIPTS.count, &[], vec![name.to_vec(), from]).await?;
        from = reply.bytes()?;
        counted = sum(counted, counts(&mut reply)?);
        if from.is_empty() {
            // Of many queues, these are read one after the other.
            let Counts { waiting, retrying, due, .. } = counted;
            return Ok(Counts { retrying: retrying.min(waiting), due: due.min(waiting), ..counted });
        }
    }
}

/// Returns the jobs of one shard by the time at which they are due after `now`.
pub(crate) async fn upcoming(shard: &Shard, now: Timestamp, upcoming: &Upcoming) -> Result<Histogram> {
    let mut found =
        Histogram { now, buckets: vec![0; upcoming.buckets], complete: true, ..Histogram::default() };
    let mut from = Vec::new();
    if upcoming.queue.as_deref().is_some_and(str::is_empty) {
        return Ok(found);
    }
    loop {
        let args = [
            digits(now.as_ms()),
            upcoming.queue.as_deref().unwrap_or_default().as_bytes().to_vec(),
            // A wider bucket also reaches beyond the last instant.
            digits(ceil_ms(upcoming.bucket).min(1 << 48)),
            digits(upcoming.buckets as u64),
            from,
        ];
        let mut reply = Reply::of(shard.link.call(&SCRIPTS.upcoming, &shard.keys, &args).await?)?;
        reply.time()?;
        from = reply.bytes()?;
        found.overdue += reply.number()?;
        while !reply.is_over() {
            let (bucket, jobs) = (reply.number()?, reply.number()?);
            if let Some(sum) = found.buckets.get_mut(bucket as usize) {
                *sum += jobs;
            }
        }
        if from.is_empty() {
            return Ok(found);
        }
    }
}
