//! Makes the state of a store again that something else removed or damaged. Jobs, leases, settings and documents are in other keys. How
//! many shards there are, and which queues are pinned, is known to the other shards (`copies`).

use std::sync::Arc;

use crate::{
    core::error::{Error, ErrorKind, Result},
    store::{
        clock::Clock,
        redis::{
            RedisStore,
            connection::{address::Address, fault, io_thread::Thread},
            scripts::{SCRIPTS, STATE, reply::Reply},
            sharded::{
                self,
                copies::{self, ASKED_MAX},
                layout::Layout,
                pins::Pins,
                reshard::tell,
                shard::{Shard, digits},
            },
        },
    },
};

/// How far the epoch of a layout that was made again is above all that are known. Programs that lived through the loss may know
/// later ones, and an epoch has one layout.
const EPOCHS_APART: u32 = 1_000;

/// What a shard knows of the layout.
struct Known {
    /// Whether it has a row of its own, whole or damaged.
    is_there: bool,
    /// The epoch that it was informed of; `None` if its own state is lost.
    epoch: Option<u32>,
    /// The layout or its copy as stored.
    row: Vec<u8>,
    /// The layout or its copy; `None` if it cannot be read, or is older than the epoch.
    layout: Option<Layout>,
    /// The pins, if they can be read.
    pins: Pins,
}

impl Known {
    /// Returns whether a shard other than 0 knows nothing that differs.
    fn agrees_with(&self, layout: &Layout) -> bool {
        self.layout.as_ref().is_none_or(|copy| {
            copy.epoch < layout.epoch || copy.epoch == layout.epoch && copy.pins == layout.pins
        })
    }
}

impl RedisStore {
    /// Makes the state of the store at `url` again, in each shard in which it is gone or damaged. Returns whether something was
    /// gone. Then the store can be opened; without it, calls on jobs are refused, as `Corrupt`. Where there is no store, it makes none.
    ///
    /// Nothing else is changed. Fences and versions of documents go on above earlier ones. Leases that ended meanwhile wait for their
    /// holders. If no other shard has a copy of its identity, the store gets another one.
    ///
    /// If the future is dropped, or after an error, some shards may have their state again: repeat the call.
    ///
    /// # Errors
    /// `Corrupt` if the store has several shards, and none of the first ones has a copy of the present layout. Otherwise as
    /// [`open`](Self::open).
    pub async fn restore(url: &str, clock: Clock) -> Result<bool> {
        let address = Address::parse(url)?;
        let thread = Arc::new(Thread::start()?);
        let new = |n| Shard::new(&thread, &address, &clock, n).map(Arc::new);
        let first = new(0)?;
        first.link.enter().await?;
        let own = known(&first).await?;
        // The servers of others are not needed if it is whole.
        let asked = match &own {
            Known { is_there: true, epoch: Some(_), layout: Some(layout), .. } => layout.live() - 1,
            _ => ASKED_MAX,
        };
        let others = (1..=asked.min(ASKED_MAX)).map(new).collect::<Result<Vec<_>>>()?;
        let copies = sharded::all(others.iter().map(known)).await?;
        let has_others = copies.iter().any(|copy| copy.is_there);
        if !own.is_there && !has_others {
            return Ok(false);
        }
        let seen_row = own.row.clone();
        let (layout, row) = match own {
            Known { is_there: true, epoch: Some(_), layout: Some(layout), .. }
                if copies.iter().all(|copy| copy.agrees_with(&layout)) =>
            {
                (layout, Vec::new())
            }
            own => {
                let layout = latest(own, copies)?;
                let row = layout.encode();
                (layout, row)
            }
        };
        let pins = if row.is_empty() { Vec::new() } else { layout.pins.encode() };
        let name = if has_others { copies::identity(&others).await } else { None };
        let name = name.map_or_else(String::new, |name| name.to_string()).into_bytes();
        let args = vec![digits(layout.epoch), seen_row, row, pins, name];
        let mut made = first.ask(&SCRIPTS.restore, &[], args).await?.number()?;
        for n in 1..layout.live() {
            made += new(n)?.ask(&SCRIPTS.restore, &[], vec![digits(layout.epoch)]).await?.number()?;
        }
        Ok(0 < made)
    }

    /// Refuses a store whose layout is gone, though its first shard was informed of one.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn check_layout(&self, told: u32) -> Result<()> {
        if self.live().layout.epoch < told { Err(fault::stateless()) } else { Ok(()) }
    }
}

/// Returns what a shard knows.
///
/// # Errors
/// Any error but that its state is lost, or that its layout cannot be read.
async fn known(shard: &Arc<Shard>) -> Result<Known> {
    let epoch = match tell(shard, 0).await {
        Ok(told) => Some(told.epoch()),
        Err(error) if fault::is_stateless(&error) => None,
        Err(error) => return Err(error),
    };
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&shard.keys[STATE]).arg("layout").arg("pins").arg("turn");
    let mut reply = Reply::of(shard.link.command(cmd).await?)?;
    let (row, pins, turn) = (reply.bytes_or_none()?, reply.bytes_or_none()?, reply.bytes_or_none()?);
    let layout = Layout::decode(&row, &pins).ok();
    let layout = layout.filter(|layout| epoch.is_none_or(|epoch| epoch <= layout.epoch));
    let pins = Pins::decode(&pins).unwrap_or_default();
    Ok(Known { is_there: epoch.is_none() || !turn.is_empty(), epoch, row, layout, pins })
}

/// Returns the latest layout that is known to shard 0 and the others, in a new epoch.
///
/// # Errors
/// `Corrupt` if a later one must have been, or another one than that of a single shard.
fn latest(own: Known, others: Vec<Known>) -> Result<Layout> {
    let is_one = !others.iter().any(|other| other.is_there);
    let pins = own.pins.clone();
    // Of copies that are as late, the last one counts: what is lost in shard 0 is not in the others.
    let all: Vec<_> = [own].into_iter().chain(others).collect();
    let seen = all.iter().filter_map(|known| known.epoch).max().unwrap_or_default();
    let layout = all.into_iter().filter_map(|known| known.layout).max_by_key(|layout| layout.epoch);
    // A shard that is there was told of a layout: it is not that of a single shard which was never changed.
    let layout = layout.or_else(|| is_one.then(|| Layout { pins, ..Layout::default() }));
    let known =
        layout.filter(|layout| seen <= layout.epoch && (is_one || 0 < layout.epoch)).ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                "no shard has a copy of the layout of the store; nothing was changed",
            )
            .with_hint(
                "restore the server's data from a backup; the layout is in key s of the prefix, field layout",
            )
        })?;
    Ok(Layout { epoch: known.epoch.max(seen) + EPOCHS_APART, is_told: false, ..known })
}
