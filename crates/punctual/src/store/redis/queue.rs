//! Queues: their settings, which a script replaces only where nobody else did meanwhile.

use crate::{
    error::{Error, ErrorKind, Result},
    job::cut_error,
    limits::BATCH_MAX,
    store::{Counts, Pause, QueueInfo, QueueOp, QueueReply, QueueSettings, check_queue_op},
    time::Timestamp,
};

use super::{
    RedisStore,
    bytes::Bytes,
    digits, read,
    reply::{self, Reply},
    scripts::{NAMES, SCRIPTS},
    settings,
};

/// How often settings may change under one call.
const TRIES_MAX: usize = 16;

/// A queue as it was seen.
struct Seen {
    now: Timestamp,
    /// 0: there is none.
    version: u32,
    settings: QueueSettings,
    counts: Counts,
    oldest_due: Option<Timestamp>,
}

async fn see(store: &RedisStore, name: &str) -> Result<Seen> {
    let mut reply = store.ask(&SCRIPTS.show, &[], vec![name.as_bytes().to_vec()]).await?;
    let now = reply.time()?;
    if reply.is_over() {
        return Ok(Seen {
            now,
            version: 0,
            settings: QueueSettings::default(),
            counts: Counts::default(),
            oldest_due: None,
        });
    }
    let row = reply.bytes()?;
    let (version, settings) = settings::decode(&row)?;
    store.known().learn(name, &row)?;
    let oldest = reply.bytes()?;
    let oldest_due = String::from_utf8_lossy(&oldest).parse().ok().map(Timestamp::saturating_from_ms);
    Ok(Seen { now, version, settings, counts: read::counts(&mut reply)?, oldest_due })
}

pub(super) async fn queue(store: &RedisStore, name: &str, op: &QueueOp) -> Result<QueueReply> {
    check_queue_op(name, op)?;
    if let QueueOp::Purge(limit) = op {
        return purge(store, name, *limit).await;
    }
    for _ in 0..TRIES_MAX {
        let seen = see(store, name).await?;
        let makes = matches!(op, QueueOp::Pause { .. } | QueueOp::Set(_));
        if seen.version == 0 && !makes {
            return Ok(QueueReply::Unknown);
        }
        let settings = match op {
            QueueOp::Show | QueueOp::Purge(_) => return Ok(info(name, seen)),
            QueueOp::Resume => QueueSettings { paused: None, ..seen.settings.clone() },
            QueueOp::Pause { by, reason } => {
                let (by, reason) = (cut_error(by).to_owned(), cut_error(reason).to_owned());
                QueueSettings {
                    paused: Some(Pause { since_ms: seen.now.as_ms(), by, reason }),
                    ..seen.settings.clone()
                }
            }
            QueueOp::Set(new) => QueueSettings { paused: seen.settings.paused.clone(), ..(**new).clone() },
        };
        let row = settings::encode(name, &settings, seen.version + 1);
        let args = vec![name.as_bytes().to_vec(), digits(seen.version), row.clone()];
        let set = store.call(&SCRIPTS.set, &[store.address.bell(name)], args).await?;
        if reply::int(&set)? == 1 {
            store.known().learn(name, &row)?;
            return Ok(info(name, Seen { settings, ..seen }));
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("the settings of queue {name:?} change all the time")))
}

fn info(name: &str, seen: Seen) -> QueueReply {
    let Seen { settings, counts, oldest_due, .. } = seen;
    QueueReply::Info(Box::new(QueueInfo { name: name.to_owned(), settings, counts, oldest_due }))
}

async fn purge(store: &RedisStore, name: &str, limit: usize) -> Result<QueueReply> {
    let args = vec![name.as_bytes().to_vec(), digits(limit as u64)];
    let mut reply = store.ask(&SCRIPTS.purge, &[], args).await?;
    if reply.is_over() {
        return Ok(QueueReply::Unknown);
    }
    Ok(QueueReply::Purged { deleted: reply.number()?, more: reply.number()? != 0 })
}

pub(super) async fn queues(store: &RedisStore, after: Option<&str>) -> Result<Vec<String>> {
    let mut from = after.map_or_else(|| b"-".to_vec(), |_| b"(".to_vec());
    from.extend_from_slice(after.unwrap_or_default().as_bytes());
    let mut cmd = redis::cmd("ZRANGEBYLEX");
    cmd.arg(&store.keys[NAMES]).arg(from).arg("+").arg("LIMIT").arg(0).arg(BATCH_MAX);
    let mut names = Reply::of(store.link.command(cmd).await?)?;
    let mut found = Vec::new();
    while !names.is_over() {
        found.push(Bytes(&names.bytes()?).text()?);
    }
    Ok(found)
}
