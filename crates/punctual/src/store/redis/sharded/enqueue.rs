//! `enqueue`: each job goes to its home. If the number of shards or the placement of its queue was different before,
//! the job is first looked for in its earlier homes.
//!
//! Only one shard at a time can have waiting or running jobs of a group or concurrency key. It alone knows how many
//! of them can start (S15). So if an earlier home has some, the new job follows them, in a step that checks again. A
//! home without any gets none by this layout, and accepts none by an earlier one. So a caller that finds all earlier
//! homes empty can use the new one.
//!
//! An unavailable shard affects only jobs that must be in it. A job whose id names it can go nowhere else: a caller
//! that repeats an enqueue with its ids would otherwise have some jobs twice. New ids name shards that are available.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use futures_util::future::join_all;

use super::{attempts::Tried, lease::is_away};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::NewJob,
        limits::{BATCH_MAX, PAYLOAD_BYTES_MAX},
    },
    store::{
        CallId, Enqueued, check_batch, check_jobs,
        redis::{
            Live, RedisStore,
            connection::fault,
            sharded::layout::Place,
            verbs::enqueue::{self, Answer, Kind, Part, Told},
        },
    },
};

/// The most groups that one script files. Each costs some commands, and other callers wait for the script.
const GROUPS_PER_SCRIPT_MAX: usize = 64;

const _: () = assert!(BATCH_MAX / GROUPS_PER_SCRIPT_MAX < u8::MAX as usize);

/// How often the layout can change during one call.
const CHANGES_MAX: usize = 16;

/// Enqueues all jobs, or fails. If `partial`: enqueues those whose shards can be reached, and fails if none can.
pub(crate) async fn enqueue(
    store: &RedisStore,
    call: CallId,
    jobs: &[NewJob],
    partial: bool,
) -> Result<Vec<Option<Enqueued>>> {
    let (answers, away) = enqueue_each(store, call, jobs).await?;
    let (is_whole, has_part) = (answers.iter().all(Option::is_some), answers.iter().any(Option::is_some));
    if !partial && !is_whole {
        let error = away.unwrap_or_else(fault::away);
        return Err(if has_part { error.in_part() } else { error });
    }
    // If no part is available, the store is unavailable.
    let live = store.live();
    match away {
        Some(error) if !has_part && (0..live.shards.len()).all(|at| is_away(&live.shards, at)) => Err(error),
        _ => Ok(answers),
    }
}

/// Enqueues the jobs whose shards can be reached; `None` for the others, and why.
async fn enqueue_each(
    store: &RedisStore,
    call: CallId,
    jobs: &[NewJob],
) -> Result<(Vec<Option<Enqueued>>, Option<Error>)> {
    check_batch("jobs", jobs.len())?;
    // A repetition is answered even if it could not be made for the first time.
    let mut broken = check_jobs(jobs, PAYLOAD_BYTES_MAX).err();
    let mut is_in_part = false;
    for _ in 0..CHANGES_MAX {
        let mut tried = store.tried_to_enqueue(call);
        tried.answers.resize(jobs.len(), None);
        for live in tried.lives.clone() {
            let mut calls =
                Calls { store, live, call, jobs, scripts: Scripts::default(), tried: &mut tried, away: None };
            let made = calls.make(broken.is_some()).await;
            let away = calls.away.take();
            store.note_tried(call, &tried);
            // An earlier try of this call may have stored a part, too.
            let has_part = tried.answers.iter().any(Option::is_some);
            if made.map_err(|error| if has_part { error.in_part() } else { error })? == Made::Refused {
                return Err(broken.take().unwrap_or_else(enqueue::odd));
            }
            // By a later layout it would belong to another shard. It must not be put there while it may be here.
            if away.is_some() {
                return Ok((tried.answers, away));
            }
        }
        if tried.answers.iter().all(Option::is_some) {
            let answers = std::mem::take(&mut tried.answers);
            store.note_tried(call, &tried);
            return Ok((answers, None));
        }
        let has_part = tried.answers.iter().any(Option::is_some);
        store.refresh().await.map_err(|error| if has_part { error.in_part() } else { error })?;
        is_in_part = has_part;
    }
    let error =
        Error::new(ErrorKind::Unavailable, "the store's shards know of a later layout than the store itself")
            .with_hint(
                "shard 0 may have lost its last writes: set the number of shards again by `punctual shards`",
            );
    Err(if is_in_part { error.in_part() } else { error })
}

#[derive(PartialEq, Eq)]
enum Made {
    /// Done, as far as this layout goes.
    Done,
    /// It breaks a limit, and is no repetition.
    Refused,
}

/// What the shards answered in addition to jobs.
struct Parts {
    made: Made,
    /// Jobs that are not where they were looked for.
    absent: Vec<usize>,
    /// Those of them whose group or concurrency key has other jobs there.
    lives: Vec<usize>,
    /// Jobs for which a shard has no answer, because it knows of a later layout.
    moved: Vec<usize>,
}

/// A call by one layout.
struct Calls<'a> {
    store: &'a RedisStore,
    live: Arc<Live>,
    call: CallId,
    jobs: &'a [NewJob],
    scripts: Scripts,
    /// What is known so far.
    tried: &'a mut Tried,
    /// Why some jobs have no answer.
    away: Option<Error>,
}

impl Calls<'_> {
    async fn make(&mut self, is_broken: bool) -> Result<Made> {
        let layout = &self.live.layout;
        let places: Vec<(Vec<Place>, Place)> = self
            .jobs
            .iter()
            .map(|job| {
                let (queue, key) = (job.queue.as_str(), job.placement_key());
                let earlier = if is_broken { Vec::new() } else { layout.earlier_places(job.id, queue, key) };
                (earlier, layout.place(job.id, queue, key))
            })
            .collect();
        let now = |i: usize| places[i].1;
        let homes = |i: usize| places[i].0.iter().map(|place| place.home).collect();
        self.scripts =
            Scripts { now: Cut::new(self.jobs, |i| vec![now(i).home]), before: Cut::new(self.jobs, homes) };
        let mut todo: Vec<usize> =
            (0..self.jobs.len()).filter(|&i| self.tried.answers[i].is_none()).collect();
        let may_expire = !is_broken && todo.iter().any(|&i| self.jobs[i].expires_at.is_some());
        if may_expire && !self.tried.is_accepted && !self.is_judged_by_first(&todo, &places) {
            self.part(Kind::Check, todo.clone(), now).await?;
            // A shard that cannot say now whether it would refuse does not refuse later.
            self.away = None;
            self.accept();
        }
        let mut moved = Vec::new();
        // Where the jobs of a job's group or key are, if that is not where it would go.
        let mut followed: Vec<Option<Place>> = vec![None; self.jobs.len()];
        for round in 0.. {
            let (looked, rest): (Vec<_>, Vec<_>) = todo.into_iter().partition(|&i| round < places[i].0.len());
            todo = rest;
            if looked.is_empty() {
                break;
            }
            let mut looked = self.part(Kind::Look, looked, |i| places[i].0[round]).await?;
            if may_expire && self.away.is_none() {
                self.accept();
            }
            for i in looked.lives {
                let there = places[i].0[round];
                if followed[i].is_none() && there.home != now(i).home {
                    followed[i] = Some(there);
                }
            }
            todo.append(&mut looked.absent);
            todo.sort_unstable();
            moved.append(&mut looked.moved);
        }
        let (mut following, mut todo): (Vec<_>, Vec<_>) =
            todo.into_iter().partition(|&i| followed[i].is_some());
        if !following.is_empty() {
            // A job that is known where it would go, or whose unique key is, goes nowhere else.
            let mut looked = self.part(Kind::Look, following, now).await?;
            following = looked.absent;
            moved.append(&mut looked.moved);
        }
        let target = |i: usize| followed[i].unwrap_or_else(|| now(i));
        let is_looked_for = places.iter().any(|(earlier, _)| !earlier.is_empty());
        let kind = match (is_broken, is_looked_for) {
            (true, _) => Kind::Refuse,
            (false, false) => Kind::Insert,
            // Of the jobs for one shard, some may come now and others with a repetition of the call.
            (false, true) => Kind::Part,
        };
        if !following.is_empty() {
            let mut put = self.part(Kind::Follow, following, target).await?;
            // The jobs that they would have followed have ended meanwhile.
            todo.append(&mut put.absent);
            todo.sort_unstable();
            moved.append(&mut put.moved);
        }
        let inserted = self.part(kind, todo, now).await?;
        // This layout is outdated, but what was done by it, in any of a job's places, is not done again.
        for round in 0.. {
            moved.retain(|&i| self.tried.answers[i].is_none() && round <= places[i].0.len());
            moved.sort_unstable();
            if moved.is_empty() {
                break;
            }
            let place = |i: usize| places[i].0.get(round).copied().unwrap_or_else(|| now(i));
            self.part(Kind::Recall, moved.clone(), place).await?;
        }
        Ok(inserted.made)
    }

    /// Returns whether the first script has all of these jobs. Only that script refuses jobs that have expired by
    /// then.
    fn is_judged_by_first(&self, jobs: &[usize], places: &[(Vec<Place>, Place)]) -> bool {
        let first = |i: usize| {
            let place = places[i].0.first().unwrap_or(&places[i].1);
            (places[i].0.is_empty(), place.home, self.scripts.of(i, place.home).0)
        };
        jobs.windows(2).all(|pair| first(pair[0]) == first(pair[1]))
    }

    /// From here on, refuses none of its jobs, nor those of repetitions, because some may have been stored.
    fn accept(&mut self) {
        if !self.tried.is_accepted {
            self.tried.is_accepted = true;
            self.store.note_tried(self.call, self.tried);
        }
    }

    /// Makes one call per shard, or a few in sequence, so that others can run in between.
    async fn part(&mut self, kind: Kind, jobs: Vec<usize>, place: impl Fn(usize) -> Place) -> Result<Parts> {
        let mut groups: BTreeMap<u16, ByScript> = BTreeMap::new();
        for i in jobs {
            let Place { home, id } = place(i);
            groups.entry(home).or_default().entry(self.scripts.of(i, home)).or_default().push((i, id));
        }
        let (live, jobs, this) = (&self.live, self.jobs, &*self);
        let parts = join_all(groups.into_iter().map(|(home, scripts)| async move {
            let (home, mut answers) = (usize::from(home), Vec::new());
            for (script, group) in scripts {
                let part = Part {
                    call: this.call_as(kind),
                    layout: &live.layout,
                    kind,
                    script,
                    is_accepted: this.tried.is_accepted,
                    jobs: group.iter().map(|(i, id)| (*id, &jobs[*i])).collect(),
                };
                let answer = if is_away(&live.shards, home) {
                    Err(fault::away())
                } else {
                    enqueue::enqueue(&live.shards[home], &part).await
                };
                let is_over = answer.is_err();
                answers.push((group, answer));
                if is_over {
                    break;
                }
            }
            answers
        }))
        .await;
        let mut told = Parts { made: Made::Done, absent: Vec::new(), lives: Vec::new(), moved: Vec::new() };
        let (mut failed, mut is_in_part) = (None::<Error>, false);
        for (group, answer) in parts.into_iter().flatten() {
            match answer {
                Ok(Answer::Jobs(_)) if kind == Kind::Check => {}
                Ok(Answer::Jobs(answers)) => {
                    is_in_part = true;
                    for ((i, _), answer) in group.into_iter().zip(answers) {
                        match answer {
                            Told::Is(answer) => self.tried.answers[i] = Some(answer),
                            Told::Absent => told.absent.push(i),
                            Told::Lives => {
                                told.absent.push(i);
                                told.lives.push(i);
                            }
                            Told::Moved => told.moved.push(i),
                        }
                    }
                }
                Ok(Answer::Refused) => told.made = Made::Refused,
                Ok(Answer::Moved) => told.moved.extend(group.into_iter().map(|(i, _)| i)),
                // A store with one shard has no other part that could go on.
                Err(error) if fault::is_away(&error) && 1 < self.live.shards.len() => {
                    // A shard whose answer was lost may have stored its part.
                    is_in_part |= error.kind() == ErrorKind::UnknownOutcome;
                    if self.away.as_ref().is_none_or(|_| error.kind() == ErrorKind::UnknownOutcome) {
                        self.away = Some(error);
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if is_in_part => Err(error.in_part()),
            Some(error) => Err(error),
            None => Ok(told),
        }
    }

    /// Returns the call as a shard will recognise it. A division by another layout is another call, and so is a
    /// check, which finds jobs that were enqueued after. With one shard, the layout does not matter.
    fn call_as(&self, kind: Kind) -> CallId {
        const EPOCH: u64 = 0x9e37_79b9_7f4a_7c15;
        const LOOK: u64 = 0x6c6f_6f6b;
        let is_cut = 1 < self.live.layout.live();
        let epoch = if is_cut { u64::from(self.live.layout.epoch).wrapping_mul(EPOCH) } else { 0 };
        let look =
            if matches!(kind, Kind::Look | Kind::Follow | Kind::Part | Kind::Recall) { LOOK } else { 0 };
        CallId { instance: self.call.instance ^ epoch ^ look, ..self.call }
    }
}

/// The script of each job in each shard: the shard it goes to now, and those where it may have been put before.
#[derive(Default)]
struct Scripts {
    now: Cut,
    before: Cut,
}

impl Scripts {
    /// Returns the number of a job's script in a shard, and how many there are.
    fn of(&self, job: usize, home: u16) -> (u8, u8) {
        self.now.of(job, home).or_else(|| self.before.of(job, home)).unwrap_or((0, 1))
    }
}

/// The jobs that go to a shard, by the number of their script and of all scripts.
type ByScript = BTreeMap<(u8, u8), Vec<(usize, JobId)>>;

/// Divides a call into scripts with a bounded number of groups. It always uses all jobs of the call, whichever of
/// them are still to be stored: a shard recognises a repeated script by its number, so it must find the same jobs in
/// it.
#[derive(Default)]
struct Cut {
    /// The last script of each shard.
    last: HashMap<u16, u8>,
    /// The script of each job in each of its shards.
    scripts: HashMap<(usize, u16), u8>,
}

impl Cut {
    fn new(jobs: &[NewJob], homes: impl Fn(usize) -> Vec<u16>) -> Self {
        let mut cut = Self::default();
        if jobs.iter().all(|job| job.group.is_none()) {
            return cut;
        }
        let mut filed: HashMap<u16, HashSet<(&str, &str)>> = HashMap::new();
        for (i, job) in jobs.iter().enumerate() {
            for home in homes(i) {
                let (last, groups) = (cut.last.entry(home).or_default(), filed.entry(home).or_default());
                if let Some(group) = &job.group {
                    let of = (job.queue.as_str(), group.as_str());
                    if groups.len() == GROUPS_PER_SCRIPT_MAX && !groups.contains(&of) {
                        *last += 1;
                        groups.clear();
                    }
                    groups.insert(of);
                }
                cut.scripts.insert((i, home), *last);
            }
        }
        cut
    }

    fn of(&self, job: usize, home: u16) -> Option<(u8, u8)> {
        Some((*self.scripts.get(&(job, home))?, *self.last.get(&home)? + 1))
    }
}
