//! Queues as one shard has them. A script replaces their settings only if they did not change meanwhile.

use std::collections::BTreeSet;

use crate::{
    core::{digest::group_digest, error::Result, limits::BATCH_MAX, time::Timestamp},
    store::{
        Counts, QueueSettings,
        redis::{
            scripts::{
                NAMES, SCRIPTS,
                bytes::Bytes,
                reply::{self, Reply},
            },
            sharded::{
                layout::Layout,
                shard::{Shard, digits},
            },
            state::settings::{self, Share},
            verbs::read,
        },
    },
};

/// A queue as it was read.
pub(crate) struct Seen {
    pub(crate) now: Timestamp,
    /// The version; 0 if there is no such queue.
    pub(crate) version: u32,
    pub(crate) settings: QueueSettings,
    pub(crate) counts: Counts,
    pub(crate) oldest_due: Option<Timestamp>,
    pub(crate) oldest_blocked: Option<Timestamp>,
    pub(crate) opens_at: Option<Timestamp>,
}

/// Returns how the shard knows a queue.
pub(crate) async fn see(shard: &Shard, name: &str) -> Result<Seen> {
    let mut reply = shard.ask(&SCRIPTS.show, &[], vec![name.as_bytes().to_vec()]).await?;
    let now = reply.time()?;
    if reply.is_over() {
        return Ok(Seen {
            now,
            version: 0,
            settings: QueueSettings::default(),
            counts: Counts::default(),
            oldest_due: None,
            oldest_blocked: None,
            opens_at: None,
        });
    }
    let row = reply.bytes()?;
    let (version, settings) = settings::decode(&row)?;
    shard.known().learn(name, &row)?;
    let mut time = || -> Result<Option<Timestamp>> {
        let text = reply.bytes()?;
        Ok(String::from_utf8_lossy(&text).parse().ok().map(Timestamp::saturating_from_ms))
    };
    let (oldest_due, oldest_blocked, opens_at) = (time()?, time()?, time()?);
    let counts = read::counts(&mut reply)?;
    Ok(Seen { now, version, settings, counts, oldest_due, oldest_blocked, opens_at })
}

/// The result of a change of settings.
pub(crate) enum Set {
    /// The settings have changed meanwhile.
    Others,
    Done,
    /// The shard knows of a later layout.
    Moved,
}

/// New settings by one layout.
pub(crate) struct New<'a> {
    pub(crate) name: &'a str,
    pub(crate) settings: &'a QueueSettings,
    pub(crate) version: u32,
    /// The layout that decides the share of each shard.
    pub(crate) layout: &'a Layout,
    /// The epoch of the call. For new shards it differs from the layout's.
    pub(crate) epoch: u32,
}

/// Sets a queue if its version is still `seen`; with `None`, if it has no later version.
pub(crate) async fn set(shard: &Shard, new: &New<'_>, seen: Option<u32>) -> Result<Set> {
    let share = Share::of(new.layout, new.name, shard.number);
    let row = settings::encode(new.name, new.settings, new.version, share);
    let mut args = vec![
        new.name.as_bytes().to_vec(),
        digits(seen.unwrap_or(new.version)),
        digits(new.epoch),
        seen.map_or_else(|| b"c".to_vec(), |_| Vec::new()),
        row.clone(),
    ];
    args.extend(settings::encode_groups(new.settings));
    match reply::int(&shard.call(&SCRIPTS.set, &[shard.notification_key(new.name)], args).await?)? {
        1 => {
            shard.known().learn(new.name, &row)?;
            Ok(Set::Done)
        }
        0 => Ok(Set::Others),
        epoch => {
            shard.learn_epoch(epoch.unsigned_abs() as u32);
            Ok(Set::Moved)
        }
    }
}

/// Ends the pause of a queue or of one of its groups, if the shard has it.
pub(crate) async fn open(shard: &Shard, name: &str, group: Option<&str>) -> Result<()> {
    let gid = group.map(|group| group_digest(group).to_vec()).unwrap_or_default();
    let args = vec![name.as_bytes().to_vec(), gid];
    shard.call(&SCRIPTS.open, &[shard.notification_key(name)], args).await?;
    Ok(())
}

/// Deletes waiting jobs; returns how many, and whether there are more. After a mebibyte of them, another script
/// continues.
pub(crate) async fn purge(shard: &Shard, name: &str, limit: usize) -> Result<Option<(u64, bool)>> {
    let mut deleted = 0;
    loop {
        let args = vec![name.as_bytes().to_vec(), digits(limit as u64 - deleted)];
        let answer = shard.ask(&SCRIPTS.purge, &[], args).await;
        let mut reply = answer.map_err(|error| if deleted == 0 { error } else { error.in_part() })?;
        if reply.is_over() {
            return Ok(None);
        }
        deleted += reply.number()?;
        let is_more = reply.number()? != 0;
        shard.notify(&reply.bytes()?)?;
        if !is_more || limit as u64 <= deleted {
            return Ok(Some((deleted, is_more)));
        }
    }
}

/// The prefix of the names of queues that hold nothing; see `lua/state/queues.lua`. No name of a queue contains this
/// byte.
const AT_REST: &str = "\0";

/// Returns the names after `after`, of queues with contents and of those without.
pub(crate) async fn queues(shard: &Shard, after: Option<&str>) -> Result<Vec<String>> {
    let mut found = BTreeSet::new();
    for (mark, end) in [("", "+"), (AT_REST, "(\x01")] {
        let from = match after {
            Some(after) => format!("({mark}{after}"),
            None if mark.is_empty() => "(\x01".to_owned(),
            None => format!("[{mark}"),
        };
        let mut cmd = redis::cmd("ZRANGEBYLEX");
        cmd.arg(&shard.keys[NAMES]).arg(from).arg(end).arg("LIMIT").arg(0).arg(BATCH_MAX);
        let mut names = Reply::of(shard.link.command(cmd).await?)?;
        while !names.is_over() {
            let name = Bytes(&names.bytes()?).text()?;
            found.insert(name.strip_prefix(AT_REST).unwrap_or(&name).to_owned());
        }
    }
    Ok(found.into_iter().take(BATCH_MAX).collect())
}
