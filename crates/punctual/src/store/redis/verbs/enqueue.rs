//! `enqueue`: options that a job leaves open are chosen here, from the settings of its queue as this process knows
//! them. The script refuses outdated settings.

use std::collections::{HashMap, HashSet};

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::NewJob,
        limits::BATCH_MAX,
    },
    store::{
        CallId, Enqueued, Existing, QueueSettings,
        redis::{
            scripts::{SCRIPTS, bytes::Bytes},
            sharded::{
                layout::Layout,
                shard::{Shard, digits},
            },
            state::{
                codec,
                settings::{self, Share},
            },
        },
    },
};

/// Stands in place of a state for a job whose record is gone.
const GONE: u8 = u8::MAX;
/// How often settings can change during one call.
const STALE_MAX: usize = 16;

/// The part of a call that goes to one shard.
pub(crate) struct Part<'a> {
    pub(crate) call: CallId,
    /// The layout of the call.
    pub(crate) layout: &'a Layout,
    pub(crate) kind: Kind,
    /// The number of this script among the shard's scripts of this call, and how many there are.
    pub(crate) script: (u8, u8),
    /// Whether none of its jobs is refused any more, because the call may be partly done.
    pub(crate) is_accepted: bool,
    /// The jobs, with their ids in this shard.
    pub(crate) jobs: Vec<(JobId, &'a NewJob)>,
}

/// What a call does with jobs that the shard does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Insert,
    /// Inserts them, too. The shard notes each of them, because others of the same call may come later: those that
    /// have to be looked for elsewhere before.
    Part,
    /// Nothing: they may be elsewhere.
    Look,
    /// Nothing, not even to the holders of their keys: there is a later layout. Only what the call did here is answered.
    Recall,
    /// Inserts them, if jobs of the same group, or else of the same concurrency key, wait or run here. Only one shard
    /// at a time has these (S15).
    Follow,
    /// Nothing, but reports whether they could be inserted.
    Check,
    /// Nothing: they break a limit. Only a repetition is answered.
    Refuse,
}

/// The answer of a shard.
pub(crate) enum Answer {
    /// An answer for each job.
    Jobs(Vec<Told>),
    /// It is no repetition.
    Refused,
    /// The shard knows of a later layout; nothing was done.
    Moved,
}

/// The answer of a shard for one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Is(Enqueued),
    /// The job is not here.
    Absent,
    /// The job is not here, but jobs of its group or concurrency key are.
    Lives,
    /// The job was not put here before, and there is a later layout.
    Moved,
}

pub(crate) async fn enqueue(shard: &Shard, part: &Part<'_>) -> Result<Answer> {
    for _ in 0..STALE_MAX {
        let (queues, args) = arguments(shard, part);
        let notifications: Vec<_> = queues.iter().map(|queue| shard.notification_key(queue)).collect();
        let mut answer = shard.ask(&SCRIPTS.enqueue, &notifications, args.clone()).await;
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::StoreFull) {
            // A full store first gives up kept jobs (S17).
            let swept = shard.sweep(BATCH_MAX, true).await?;
            if 0 < swept.removed {
                answer = shard.ask(&SCRIPTS.enqueue, &notifications, args).await;
            }
        }
        let mut reply = answer?;
        let first = reply.bytes()?;
        match first.as_slice() {
            b"refused" if reply.is_over() => return Ok(Answer::Refused),
            b"stale" if !reply.is_over() => {
                let of = reply.number()? as usize;
                let queue = queues.get(of.wrapping_sub(1)).ok_or_else(odd)?;
                shard.known().learn(queue, &reply.bytes()?)?;
            }
            b"moved" if !reply.is_over() => {
                shard.learn_epoch(reply.number()? as u32);
                return Ok(Answer::Moved);
            }
            b"expired" if !reply.is_over() => {
                reply.number()?;
                let (expires_at, run_at) = (reply.time()?, reply.time()?);
                return Err(Error::invalid(format!("expires_at {expires_at} is not after run_at {run_at}")));
            }
            b"ok" if reply.is_over() => return Ok(Answer::Jobs(Vec::new())),
            answers if reply.is_over() => return read(answers, part).map(Answer::Jobs),
            _ => return Err(odd()),
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "the settings of the queue keep changing"))
}

pub(crate) fn odd() -> Error {
    Error::new(ErrorKind::Corrupt, "the script enqueue answered what it never should")
}

/// Returns the queues of a call, and the arguments of the script.
fn arguments<'a>(shard: &Shard, part: &Part<'a>) -> (Vec<&'a str>, Vec<Vec<u8>>) {
    let Part { call, kind, jobs, .. } = part;
    let mut queues: Vec<(&str, QueueSettings)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut args = vec![
        call.instance.to_be_bytes().to_vec(),
        digits(call.number),
        Vec::new(),
        // Each shard of several knows of a later epoch than 0, and then changes nothing.
        digits(if *kind == Kind::Recall { 0 } else { part.layout.epoch }),
        Vec::new(),
        which(part),
    ];
    {
        let known = shard.known();
        for (_, job) in jobs {
            places.entry(&job.queue).or_insert_with(|| {
                let (version, settings) = known.of(&job.queue);
                args.push(job.queue.clone().into_bytes());
                args.push(digits(version));
                // Only needed if the queue does not exist yet.
                args.push(if version == 0 {
                    let share = Share::of(part.layout, &job.queue, shard.number);
                    settings::encode(&job.queue, &settings, 1, share)
                } else {
                    Vec::new()
                });
                queues.push((&job.queue, settings));
                queues.len()
            });
        }
    }
    args[4] = digits(queues.len() as u64);
    args.extend(jobs.iter().map(|(id, _)| id.as_bytes().to_vec()));
    let mut ids = HashSet::with_capacity(jobs.len());
    args[2] = vec![match kind {
        Kind::Refuse => b'b',
        Kind::Look | Kind::Recall => b'h',
        Kind::Part => b'p',
        Kind::Follow => b'f',
        Kind::Check => b'c',
        Kind::Insert if jobs.iter().all(|(id, _)| ids.insert(*id)) => b'o',
        Kind::Insert => b't',
    }];
    let mut rests = Vec::with_capacity(jobs.len());
    for (_, job) in jobs {
        let of = places[job.queue.as_str()];
        let (spec, rest) = codec::encode(job, of, &queues[of - 1].1.defaults);
        args.push(spec);
        rests.push(rest);
    }
    args.append(&mut rests);
    (queues.into_iter().map(|(name, _)| name).collect(), args)
}

/// Returns what distinguishes a script from the others of its call; empty if it is the only one.
fn which(part: &Part<'_>) -> Vec<u8> {
    let which = vec![part.script.0, part.script.1, part.is_accepted.into()];
    if which == [0, 1, 0] { Vec::new() } else { which }
}

fn read(answers: &[u8], part: &Part<'_>) -> Result<Vec<Told>> {
    let mut all = Bytes(answers);
    part.jobs
        .iter()
        .map(|(id, _)| {
            Ok(Told::Is(match all.byte()? {
                b'A' => return Ok(Told::Absent),
                b'L' => return Ok(Told::Lives),
                b'M' => return Ok(Told::Moved),
                b'I' => Enqueued::Inserted { id: *id, run_at: all.time()? },
                b'R' => Enqueued::Replaced { id: all.id()?, run_at: all.time()? },
                b'S' => Enqueued::Rescheduled { id: all.id()?, run_at: all.time()? },
                b'D' => Enqueued::Duplicate(Existing {
                    id: all.id()?,
                    state: match all.byte()? {
                        GONE => None,
                        code => Some(codec::state(code)?),
                    },
                    version: all.number(4)?,
                    cancel_requested: all.byte()? != 0,
                    // Another program may have overwritten it.
                    kind: all.chunk()?.text().ok().filter(|kind| !kind.is_empty()),
                }),
                b'X' => Enqueued::Conflict { id: all.id()? },
                b'F' => Enqueued::Full,
                _ => return Err(odd()),
            }))
        })
        .collect()
}
