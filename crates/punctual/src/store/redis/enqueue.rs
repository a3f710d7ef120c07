//! `enqueue`: the options that a job leaves open are chosen here, from the settings of its queue as this process knows them;
//! the script refuses to use settings that are not the queue's any more.

use std::collections::{HashMap, HashSet};

use crate::{
    error::{Error, ErrorKind, Result},
    job::NewJob,
    limits::{BATCH_MAX, PAYLOAD_BYTES_MAX},
    store::{Call, Enqueued, Existing, QueueSettings, check_batch, check_jobs},
};

use super::{RedisStore, bytes::Bytes, digits, record, scripts::SCRIPTS, settings};

/// Where a state would stand, of a job whose record is gone.
const GONE: u8 = u8::MAX;
/// How often settings may change under one call.
const STALE_MAX: usize = 16;

pub(super) async fn enqueue(store: &RedisStore, call: Call, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    check_batch("jobs", jobs.len())?;
    // A repetition is answered also where it could not be made for the first time.
    let broken = check_jobs(jobs, PAYLOAD_BYTES_MAX).err();
    for _ in 0..STALE_MAX {
        let (queues, args) = arguments(store, call, jobs, broken.is_some());
        let bells: Vec<_> = queues.iter().map(|queue| store.address.bell(queue)).collect();
        let mut answer = store.ask(&SCRIPTS.enqueue, &bells, args.clone()).await;
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::StoreFull) {
            // A full store gives up kept jobs first (S17).
            let swept = store.sweep_jobs(BATCH_MAX, true).await?;
            if 0 < swept.removed {
                answer = store.ask(&SCRIPTS.enqueue, &bells, args).await;
            }
        }
        let mut reply = answer?;
        let first = reply.bytes()?;
        if !reply.is_over() || first == b"refused" {
            match first.as_slice() {
                b"refused" => return Err(broken.unwrap_or_else(odd)),
                b"stale" => {
                    let of = reply.number()? as usize;
                    let queue = queues.get(of.wrapping_sub(1)).ok_or_else(odd)?;
                    store.known().learn(queue, &reply.bytes()?)?;
                    continue;
                }
                b"expired" => {
                    reply.number()?;
                    let (expires_at, run_at) = (reply.time()?, reply.time()?);
                    return Err(Error::invalid(format!(
                        "expires_at {expires_at} is not after run_at {run_at}"
                    )));
                }
                _ => return Err(odd()),
            }
        }
        return answers(&first, jobs);
    }
    Err(Error::new(ErrorKind::Unavailable, "the settings of a queue change faster than jobs can be enqueued"))
}

fn odd() -> Error {
    Error::new(ErrorKind::Corrupt, "the script enqueue answered what it never should")
}

/// The queues of a call, and the arguments of the script.
fn arguments<'a>(
    store: &RedisStore,
    call: Call,
    jobs: &'a [NewJob],
    broken: bool,
) -> (Vec<&'a str>, Vec<Vec<u8>>) {
    let mut queues: Vec<(&str, QueueSettings)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut args = vec![
        call.instance.to_be_bytes().to_vec(),
        digits(call.number),
        vec![if broken { b'b' } else { b'o' }],
        Vec::new(),
    ];
    {
        let known = store.known();
        for job in jobs {
            places.entry(&job.queue).or_insert_with(|| {
                let (version, settings) = known.of(&job.queue);
                args.push(job.queue.clone().into_bytes());
                args.push(digits(version));
                // Of use only where there is no queue yet.
                let row = if version == 0 { settings::encode(&job.queue, &settings, 1) } else { Vec::new() };
                args.push(row);
                queues.push((&job.queue, settings));
                queues.len()
            });
        }
    }
    args[3] = digits(queues.len() as u64);
    args.extend(jobs.iter().map(|job| job.id.as_bytes().to_vec()));
    let mut ids = HashSet::with_capacity(jobs.len());
    if !broken && !jobs.iter().all(|job| ids.insert(job.id)) {
        args[2] = vec![b't'];
    }
    let mut rests = Vec::with_capacity(jobs.len());
    for job in jobs {
        let of = places[job.queue.as_str()];
        let (spec, rest) = record::encode(job, of, &queues[of - 1].1.defaults);
        args.push(spec);
        rests.push(rest);
    }
    args.append(&mut rests);
    (queues.into_iter().map(|(name, _)| name).collect(), args)
}

fn answers(all: &[u8], jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    let mut all = Bytes(all);
    jobs.iter()
        .map(|job| {
            Ok(match all.byte()? {
                b'I' => Enqueued::Inserted { id: job.id, run_at: all.time()? },
                b'R' => Enqueued::Replaced { id: all.id()?, run_at: all.time()? },
                b'S' => Enqueued::Rescheduled { id: all.id()?, run_at: all.time()? },
                b'D' => Enqueued::Duplicate(Existing {
                    id: all.id()?,
                    state: match all.byte()? {
                        GONE => None,
                        code => Some(record::state(code)?),
                    },
                    version: all.number(4)?,
                    cancel_requested: all.byte()? != 0,
                }),
                b'F' => Enqueued::Full,
                _ => return Err(odd()),
            })
        })
        .collect()
}
