//! `enqueue`: each job goes to its home. Where the number of shards was another one before, or its queue was placed in
//! another way, it is first looked for in the homes that it had then.
//!
//! Only one shard at a time may have jobs of a group, or of a concurrency key, that wait or run: it alone knows how many of
//! them may start (S15). So where an earlier home has some, the new one follows them, in a step that looks once more. A home
//! without any gets none by this layout, and takes none by one before: whoever finds all of them so may go on to the new one.

use std::{collections::BTreeMap, sync::Arc};

use super::all;
use crate::{
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::NewJob,
    limits::PAYLOAD_BYTES_MAX,
    store::{
        Call, Enqueued, check_batch, check_jobs,
        redis::{
            Live, RedisStore,
            enqueue::{self, Answer, Kind, Part, Told},
            layout::Place,
        },
    },
};

/// How often the layout may change under one call.
const CHANGES_MAX: usize = 16;

pub(in crate::store::redis) async fn enqueue(
    store: &RedisStore,
    call: Call,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>> {
    check_batch("jobs", jobs.len())?;
    // A repetition is answered also where it could not be made for the first time.
    let mut broken = check_jobs(jobs, PAYLOAD_BYTES_MAX).err();
    let mut answers = vec![None; jobs.len()];
    for _ in 0..CHANGES_MAX {
        for live in store.attempts_to_enqueue(call) {
            let mut calls = Calls { live, call, jobs, answers: &mut answers };
            if calls.make(broken.is_some()).await? == Made::Refused {
                return Err(broken.take().unwrap_or_else(enqueue::odd));
            }
        }
        if let Some(answers) = answers.iter().copied().collect::<Option<Vec<_>>>() {
            return Ok(answers);
        }
        store.refresh().await?;
    }
    Err(Error::new(ErrorKind::Unavailable, "the store's shards know of a later layout than the store itself")
        .with_hint(
            "shard 0 may have lost its last writes: set the number of shards again by `punctual shards`",
        ))
}

#[derive(PartialEq, Eq)]
enum Made {
    /// As far as it goes by this layout.
    Done,
    /// It breaks a limit, and is no repetition.
    Refused,
}

/// What the shards answered, besides jobs.
struct Parts {
    made: Made,
    /// Jobs that are not where they were looked for.
    absent: Vec<usize>,
    /// Those of them whose group or concurrency key has others there.
    lives: Vec<usize>,
    /// Jobs of which a shard says nothing, since it knows of a later layout.
    moved: Vec<usize>,
}

/// A call, by one layout.
struct Calls<'a> {
    live: Arc<Live>,
    call: Call,
    jobs: &'a [NewJob],
    /// What is known so far.
    answers: &'a mut [Option<Enqueued>],
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
        let mut todo: Vec<usize> = (0..self.jobs.len()).filter(|&i| self.answers[i].is_none()).collect();
        let mut moved = Vec::new();
        // Where what limits a job is, if that is not where it would go.
        let mut followed: Vec<Option<Place>> = vec![None; self.jobs.len()];
        for round in 0.. {
            let (looked, rest): (Vec<_>, Vec<_>) = todo.into_iter().partition(|&i| round < places[i].0.len());
            todo = rest;
            if looked.is_empty() {
                break;
            }
            let mut looked = self.part(Kind::Look, looked, |i| places[i].0[round]).await?;
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
            // One that is known where it would go, or whose unique key is, goes nowhere.
            let mut looked = self.part(Kind::Look, following, now).await?;
            following = looked.absent;
            moved.append(&mut looked.moved);
        }
        let target = |i: usize| followed[i].unwrap_or_else(|| now(i));
        let kind = if is_broken { Kind::Refuse } else { Kind::Insert };
        let mut all = [&todo[..], &following].concat();
        all.sort_unstable();
        if kind == Kind::Insert && self.may_be_refused_in_part(&all, target) {
            self.part(Kind::Check, all, target).await?;
        }
        if !following.is_empty() {
            let mut put = self.part(Kind::Follow, following, target).await?;
            // Those that they would have followed have ended meanwhile.
            todo.append(&mut put.absent);
            todo.sort_unstable();
            moved.append(&mut put.moved);
        }
        let inserted = self.part(kind, todo, now).await?;
        // This layout is over, but what was done by it before is not done again.
        moved.sort_unstable();
        self.part(Kind::Refuse, moved, now).await?;
        Ok(inserted.made)
    }

    /// Whether one of several shards may refuse its part: each of them judges an expiry by its own clock.
    fn may_be_refused_in_part(&self, jobs: &[usize], place: impl Fn(usize) -> Place) -> bool {
        let spans_shards = jobs.windows(2).any(|pair| place(pair[0]).home != place(pair[1]).home);
        spans_shards && jobs.iter().any(|&i| self.jobs[i].expires_at.is_some())
    }

    /// Makes one call per shard.
    async fn part(&mut self, kind: Kind, jobs: Vec<usize>, place: impl Fn(usize) -> Place) -> Result<Parts> {
        let mut groups: BTreeMap<u16, Vec<(usize, JobId)>> = BTreeMap::new();
        for i in jobs {
            let Place { home, id } = place(i);
            groups.entry(home).or_default().push((i, id));
        }
        let (live, call, jobs) = (&self.live, self.call_as(kind), self.jobs);
        let parts = all(groups.into_iter().map(|(home, group)| async move {
            let part = Part {
                call,
                layout: &live.layout,
                kind,
                jobs: group.iter().map(|(i, id)| (*id, &jobs[*i])).collect(),
            };
            let answer = enqueue::enqueue(&live.shards[usize::from(home)], &part).await?;
            Ok((group, answer))
        }))
        .await?;
        let mut told = Parts { made: Made::Done, absent: Vec::new(), lives: Vec::new(), moved: Vec::new() };
        for (group, answer) in parts {
            match answer {
                Answer::Jobs(_) if kind == Kind::Check => {}
                Answer::Jobs(answers) => {
                    for ((i, _), answer) in group.into_iter().zip(answers) {
                        match answer {
                            Told::Is(answer) => self.answers[i] = Some(answer),
                            Told::Absent => told.absent.push(i),
                            Told::Lives => {
                                told.absent.push(i);
                                told.lives.push(i);
                            }
                            Told::Moved => told.moved.push(i),
                        }
                    }
                }
                Answer::Refused => told.made = Made::Refused,
                Answer::Moved => told.moved.extend(group.into_iter().map(|(i, _)| i)),
            }
        }
        Ok(told)
    }

    /// The call as a shard is to know it again: what is cut by another layout is another call, and so is looking, which finds
    /// what followed. Of one shard nothing is cut.
    fn call_as(&self, kind: Kind) -> Call {
        const EPOCH: u64 = 0x9e37_79b9_7f4a_7c15;
        const LOOK: u64 = 0x6c6f_6f6b;
        let is_cut = 1 < self.live.layout.live();
        let epoch = if is_cut { u64::from(self.live.layout.epoch).wrapping_mul(EPOCH) } else { 0 };
        let look = if matches!(kind, Kind::Look | Kind::Follow) { LOOK } else { 0 };
        Call { instance: self.call.instance ^ epoch ^ look, ..self.call }
    }
}
