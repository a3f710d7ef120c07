//! The layout: how many shards a store has, and which shard a job is in. Pure.
//!
//! A made id names its shard, if a shard with this number exists: jobs never move. What is compared with each other
//! (a unique key, an id that stands for an idempotency key) has one of 1,024 buckets. A bucket has one shard, its
//! *home*, which depends on the number of shards. That number can change at any time, so earlier numbers are
//! remembered: before a job is enqueued, it is looked for in its earlier homes. A number is forgotten when it leads
//! to nothing more. A number above the current one is forgotten when its additional shards are empty. One below it,
//! an *outgrown* one, is forgotten after a search (`misplaced`).
//!
//! A queue can be pinned to one shard. Its jobs are then placed by its name instead of their own keys. The earlier
//! placement is checked like an earlier number.
//!
//! Each change has a number, the *epoch*. Every shard learns it before any process uses the new layout, and then
//! accepts no jobs of an earlier one. So a process that looks for a key in its old home knows that the key is not put
//! there any more.

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::{JobId, bucket},
        limits::SHARDS_MAX,
        time::Timestamp,
    },
    store::{
        Placement,
        redis::{
            connection::fault,
            scripts::bytes::{Bytes, Put},
            sharded::pins::{Pin, Pins},
        },
    },
};

/// How far the clock that made an id can be from the store's, in ms. An id that was made longer than this after a
/// change is known to be new.
const CLOCKS_APART_MS: u64 = 600_000;
/// The earlier numbers of shards that are kept. A change that would need more is refused.
const EARLIER_MAX: usize = 16;

/// The layout of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Changes so far.
    pub(crate) epoch: u32,
    /// The shards that accept jobs: 0 to this minus 1.
    pub(crate) shards: u16,
    /// Earlier numbers whose shards may hold jobs, the newest first.
    pub(crate) earlier: Vec<u16>,
    /// Whether all shards know of it.
    pub(crate) is_told: bool,
    /// When the number was set, by the clock of shard 0.
    pub(crate) since_ms: u64,
    pub(crate) pins: Pins,
}

impl Default for Layout {
    /// Returns the layout of a store that was never changed.
    fn default() -> Self {
        Self { epoch: 0, shards: 1, earlier: Vec::new(), is_told: true, since_ms: 0, pins: Pins::default() }
    }
}

impl Layout {
    /// Returns the stored form, without the pins.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if *self == Self::default() {
            return Vec::new();
        }
        let mut row = Vec::with_capacity(8);
        row.number(self.epoch.into(), 4);
        row.number(self.shards.into(), 2);
        row.push(u8::from(self.is_told));
        row.number(self.since_ms, 6);
        self.earlier.iter().for_each(|shards| row.number((*shards).into(), 2));
        row
    }

    /// Reads what [`encode`](Self::encode) wrote, and the pins. Both are empty for a store that was never changed.
    pub(crate) fn decode(row: &[u8], pins: &[u8]) -> Result<Self> {
        if row.is_empty() && pins.is_empty() {
            return Ok(Self::default());
        }
        Self::read(Bytes(row), pins).ok().flatten().ok_or_else(fault::stateless)
    }

    /// Returns `None` for an impossible number of shards.
    fn read(mut row: Bytes<'_>, pins: &[u8]) -> Result<Option<Self>> {
        let (epoch, shards, is_told) = (row.number(4)? as u32, row.number(2)? as u16, row.byte()? == 1);
        let since_ms = row.number(6)?;
        let mut earlier = Vec::new();
        while !row.is_empty() {
            earlier.push(row.number(2)? as u16);
        }
        let is_possible = [shards].iter().chain(&earlier).all(|shards| (1..=SHARDS_MAX).contains(shards));
        let pins = Pins::decode(pins)?;
        Ok(is_possible.then_some(Self { epoch, shards, earlier, is_told, since_ms, pins }))
    }

    /// Returns the number of shards that may hold jobs: 0 to this minus 1.
    pub(crate) fn live(&self) -> u16 {
        self.earlier.iter().copied().fold(self.shards, u16::max)
    }

    /// Returns the layout with another number of shards, in an epoch after `seen`.
    ///
    /// # Errors
    /// `Invalid` for an impossible number; `Conflict` after too many changes.
    pub(crate) fn changed(&self, shards: u16, seen: u32, now: Timestamp) -> Result<Self> {
        if !(1..=SHARDS_MAX).contains(&shards) {
            return Err(Error::invalid(format!("a store has 1 to {SHARDS_MAX} shards, not {shards}")));
        }
        let earlier: Vec<u16> = self.numbers().filter(|other| *other != shards).collect();
        if EARLIER_MAX < earlier.len() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("the store had {EARLIER_MAX} other numbers of shards, which are still in use"),
            )
            .with_hint("choose one of them"));
        }
        let since_ms = now.as_ms().max(self.since_ms);
        let pins = self.pins.clone();
        Ok(Self { epoch: self.epoch.max(seen) + 1, shards, earlier, is_told: false, since_ms, pins })
    }

    /// Returns the layout with another placement of a queue, in an epoch after `seen`.
    ///
    /// # Errors
    /// `Conflict` if too many queues were pinned.
    pub(crate) fn placing(&self, queue: &str, to: Placement, seen: u32, now: Timestamp) -> Result<Self> {
        let epoch = self.epoch.max(seen) + 1;
        // With one shard, both placements lead to it, so processes that learn of it later do nothing wrong.
        let is_told = self.live() == 1;
        Ok(Self { epoch, is_told, pins: self.pins.with(queue, to, epoch, now)?, ..self.clone() })
    }

    /// Returns the layout without earlier numbers that are needed only for the empty shards from `holding` on. What
    /// such a number put into a remaining shard, the least remaining number puts there, too.
    pub(crate) fn without(&self, holding: u16, seen: u32) -> Self {
        let live =
            self.numbers().filter(|shards| holding.max(self.shards) <= *shards).min().unwrap_or(self.live());
        let earlier = self.earlier.iter().copied().filter(|earlier| *earlier <= live).collect();
        Self { epoch: self.epoch.max(seen) + 1, earlier, is_told: false, ..self.clone() }
    }

    /// Returns the layout without outgrown numbers, which are below the current one.
    pub(crate) fn without_outgrown(&self) -> Self {
        let earlier = self.earlier.iter().copied().filter(|earlier| self.shards < *earlier).collect();
        Self { earlier, ..self.clone() }
    }

    /// Returns how many shards, from 0 on, may hold jobs that outgrown numbers put there.
    pub(crate) fn outgrown(&self) -> u16 {
        self.earlier.iter().copied().filter(|earlier| *earlier < self.shards).max().unwrap_or(0)
    }

    /// Returns whether an enqueue of the same job looks in this shard for this id.
    pub(crate) fn leads_to(&self, there: Place, queue: &str, placement_key: Option<&str>) -> bool {
        self.keys(queue, placement_key)
            .any(|key| self.numbers().any(|shards| place(shards, there.id, key) == there))
    }

    /// Returns whether a key may have had another home.
    pub(crate) fn has_other_homes(&self) -> bool {
        !self.earlier.is_empty() || self.pins != Pins::default()
    }

    /// Returns how the jobs of a queue are placed.
    pub(crate) fn placement(&self, queue: &str) -> Placement {
        match self.pins.of(queue) {
            Some(Pin { is_pinned: true, .. }) => Placement::Pinned,
            _ => Placement::Spread,
        }
    }

    /// Returns the shard of a pinned queue.
    pub(crate) fn home_of_queue(&self, queue: &str) -> Option<u16> {
        (self.placement(queue) == Placement::Pinned).then(|| jump(bucket(queue), self.shards))
    }

    /// Returns the keys by which the jobs of a queue are placed now and were placed before. `placement_key` is that
    /// of `JobId::derived`.
    fn keys<'a>(
        &self,
        queue: &'a str,
        placement_key: Option<&'a str>,
    ) -> impl Iterator<Item = Option<&'a str>> {
        let (own, name) = (Some(placement_key), Some(Some(queue)));
        let keys = match self.pins.of(queue) {
            None => [own, None],
            Some(pin) if pin.is_pinned => [name, own],
            Some(_) => [own, name],
        };
        keys.into_iter().flatten()
    }

    /// Returns the shard and the id of a job.
    pub(crate) fn place(&self, id: JobId, queue: &str, placement_key: Option<&str>) -> Place {
        place(self.shards, id, self.keys(queue, placement_key).next().flatten())
    }

    /// Returns the other places where the job may be, if it was enqueued before, or where the holder of its key may
    /// be.
    pub(crate) fn earlier_places(&self, id: JobId, queue: &str, placement_key: Option<&str>) -> Vec<Place> {
        let now = self.place(id, queue, placement_key);
        let pin = self.pins.of(queue);
        let since_ms = pin.map_or(0, |pin| pin.since_ms).max(self.since_ms);
        let is_younger = id.made_ms().is_some_and(|made| since_ms + CLOCKS_APART_MS < made);
        if placement_key.is_none() && is_younger {
            // It did not exist while the placement was different.
            return Vec::new();
        }
        let places = self
            .keys(queue, placement_key)
            .flat_map(|key| self.numbers().map(move |shards| place(shards, id, key)));
        // A placement by another key gives another id, even in the same shard.
        let has_other_ids = id.is_derived() || pin.is_some();
        distinct(places.filter(|place| place.home != now.home || has_other_ids && place.id != now.id))
    }

    /// Returns the shards where the job of an id may be, the likeliest first.
    pub(crate) fn homes_of(&self, id: JobId) -> Vec<u16> {
        distinct(self.numbers().map(|shards| home(shards, id)))
    }

    /// Returns the shards where the holder of a unique key may be, the likeliest first.
    pub(crate) fn homes_of_key(&self, queue: &str, placement_key: &str) -> Vec<u16> {
        let buckets = self.keys(queue, Some(placement_key)).flatten().map(bucket);
        distinct(buckets.flat_map(|bucket| self.numbers().map(move |shards| jump(bucket, shards))))
    }

    fn numbers(&self) -> impl Iterator<Item = u16> {
        [self.shards].into_iter().chain(self.earlier.iter().copied())
    }
}

/// A shard, and an id that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) home: u16,
    pub(crate) id: JobId,
}

/// Places a job by a key, or by its id alone. With one shard, all ids stay as they are.
fn place(shards: u16, id: JobId, key: Option<&str>) -> Place {
    let Some(key) = key.filter(|_| 1 < shards) else { return Place { home: home(shards, id), id } };
    let bucket = bucket(key);
    let home = jump(bucket, shards);
    Place { home, id: id.with_shard(if id.is_derived() { bucket } else { home }) }
}

/// Returns the shard to which an id alone leads: for a made one, the shard that it names, if that exists.
fn home(shards: u16, id: JobId) -> u16 {
    if !id.is_derived() && id.shard() < shards { id.shard() } else { jump(id.shard(), shards) }
}

fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// Returns the shard of a bucket. When shards are added, a bucket stays or moves to a new one: "A Fast, Minimal
/// Memory, Consistent Hash Algorithm", Lamping and Veach, 2014.
fn jump(bucket: u16, shards: u16) -> u16 {
    let (mut key, mut at, mut next) = (u64::from(bucket), 0, 0);
    while next < u64::from(shards) {
        at = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((at + 1) as f64 * ((1_u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as u64;
    }
    at as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::id::IdMaker;

    const NOW: Timestamp = Timestamp::saturating_from_ms(1_800_000_000_000);

    const QUEUE: &str = "mail";

    fn made_at(ms: u64, shard: u16) -> JobId {
        IdMaker::default().make(ms, shard, 7)
    }

    fn made(shard: u16) -> JobId {
        made_at(NOW.as_ms(), shard)
    }

    fn derived(key: &str) -> JobId {
        JobId::derived(QUEUE, None, key)
    }

    #[test]
    fn a_layout_survives_its_row() {
        let changed = Layout::default().changed(8, 0, NOW).unwrap().changed(3, 6, NOW).unwrap();
        let since_ms = NOW.as_ms();
        assert_eq!(
            changed,
            Layout {
                epoch: 7,
                shards: 3,
                earlier: vec![8, 1],
                is_told: false,
                since_ms,
                ..Layout::default()
            }
        );
        assert_eq!(Layout::decode(&changed.encode(), &[]).unwrap(), changed);
        assert_eq!(Layout::decode(&Layout::default().encode(), &[]).unwrap(), Layout::default());
        // Each number of shards, and a truncated row.
        let row = changed.encode();
        let with = |at: usize, bytes: [u8; 2]| [&row[..at], &bytes, &row[at + 2..]].concat();
        let short = (1..row.len()).filter(|len| *len != 13 && *len != 15).map(|len| row[..len].to_vec());
        for broken in [with(4, [0, 0]), with(4, [0xff, 0xff]), with(15, [0, 0])].into_iter().chain(short) {
            assert_eq!(Layout::decode(&broken, &[]).unwrap_err().kind(), ErrorKind::Corrupt, "{broken:?}");
        }
    }

    #[test]
    fn a_number_of_shards_is_bounded_and_so_is_what_is_remembered() {
        let mut layout = Layout::default();
        for shards in [0, SHARDS_MAX + 1, u16::MAX] {
            assert_eq!(layout.changed(shards, 0, NOW).unwrap_err().kind(), ErrorKind::Invalid);
        }
        for shards in 2..=EARLIER_MAX as u16 + 1 {
            layout = layout.changed(shards, 0, NOW).unwrap();
        }
        assert_eq!(layout.changed(100, 0, NOW).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(layout.changed(1, 0, NOW).unwrap().earlier.len(), EARLIER_MAX);
    }

    #[test]
    fn buckets_spread_evenly_and_move_to_new_shards_only() {
        for shards in 1..=64 {
            let mut load = vec![0_u16; usize::from(shards)];
            for bucket in 0..SHARDS_MAX {
                let (before, after) = (jump(bucket, shards), jump(bucket, shards + 1));
                assert!(after == before || after == shards, "{bucket}: {before} then {after}");
                load[usize::from(before)] += 1;
            }
            let fair = SHARDS_MAX / shards;
            assert!(load.iter().all(|load| (fair / 3..=fair * 3).contains(load)), "{shards}: {load:?}");
        }
        assert!(jump(SHARDS_MAX - 1, SHARDS_MAX) < SHARDS_MAX);
    }

    #[test]
    fn a_made_id_leads_to_the_shard_that_it_names() {
        let layout = Layout::default().changed(8, 0, NOW).unwrap();
        let place = |home, id| Place { home, id };
        assert_eq!(layout.place(made(5), QUEUE, None), place(5, made(5)));
        assert_eq!(layout.homes_of(made(5)), [5, 0]);
        let fewer = layout.changed(3, 0, NOW).unwrap();
        let there = fewer.place(made(5), QUEUE, None);
        assert!(there.home < 3 && there.id == made(5));
        // If it was enqueued before, it is where it was. One made long after the change was not.
        assert!(fewer.earlier_places(made(5), QUEUE, None).contains(&place(5, made(5))));
        assert_eq!(fewer.earlier_places(made_at(NOW.as_ms() + CLOCKS_APART_MS + 1, 5), QUEUE, None), []);
        assert_eq!(fewer.homes_of(made(5)), distinct([there.home, 5, 0]));
        assert_eq!(fewer.without(6, 0).live(), 8);
        let drained = fewer.without(3, 0);
        assert_eq!((drained.epoch, drained.live(), &drained.earlier[..]), (3, 3, &[1][..]));
        assert_eq!(drained.homes_of(made(5)), distinct([there.home, 0]));
    }

    #[test]
    fn an_id_leads_to_its_job_wherever_a_placement_key_puts_it() {
        for shards in [1, 3, 8] {
            let layout = Layout::default().changed(shards, 0, NOW).unwrap();
            for (n, shard) in [(0, 0), (1, 5), (2, 1_023), (3, 700)] {
                let Place { home, id } = layout.place(made(shard), QUEUE, Some(&format!("key {n}")));
                assert_eq!(home, layout.homes_of_key(QUEUE, &format!("key {n}"))[0]);
                assert_eq!(layout.homes_of(id)[0], home);
                // Enqueued again with the returned id, it is the same.
                assert_eq!(layout.place(id, QUEUE, Some(&format!("key {n}"))), Place { home, id });
                assert!(1 < shards || id == made(shard), "one shard leaves ids as they are");
            }
        }
    }

    #[test]
    fn what_is_compared_is_looked_for_in_every_home_that_it_had() {
        let layout = Layout::default().changed(8, 0, NOW).unwrap().changed(3, 0, NOW).unwrap();
        for n in 0..100 {
            let (id, key) = (derived(&n.to_string()), n.to_string());
            for (homes, now, earlier) in [
                (layout.homes_of(id), layout.place(id, QUEUE, None), layout.earlier_places(id, QUEUE, None)),
                (
                    layout.homes_of_key(QUEUE, &key),
                    layout.place(made(0), QUEUE, Some(&key)),
                    layout.earlier_places(made(0), QUEUE, Some(&key)),
                ),
            ] {
                assert_eq!(homes[0], now.home);
                let is_looked_at = |home: &u16| earlier.iter().any(|place| place.home == *home);
                assert!(homes[1..].iter().all(is_looked_at), "{homes:?} {earlier:?}");
                assert!(homes.contains(&0) && homes.iter().all(|home| *home < 8) && now.home < 3);
                assert!(!is_looked_at(&now.home));
            }
        }
    }

    #[test]
    fn a_layout_without_outgrown_numbers_leads_to_what_it_would_put_there() {
        let one = Layout::default();
        let three = one.changed(3, 0, NOW).unwrap();
        let layout = three.changed(8, 0, NOW).unwrap().changed(5, 0, NOW).unwrap();
        let without = layout.without_outgrown();
        assert_eq!((&layout.earlier[..], &without.earlier[..]), (&[8, 3, 1][..], &[8][..]));
        assert_eq!((layout.outgrown(), without.outgrown(), one.outgrown()), (3, 0, 0));
        assert_eq!(without.epoch, layout.epoch);
        let (mut found, mut misplaced) = (0, 0);
        for n in 0..100 {
            let key = n.to_string();
            for (id, key) in [
                (made(n), None),
                (made(n), Some(&*key)),
                (derived(&key), None),
                (derived(&key), Some("odd")),
                (JobId::derived(QUEUE, Some(&key), "a"), Some(&*key)),
            ] {
                for by in [&one, &three, &layout, &layout.changed(8, 0, NOW).unwrap()] {
                    let there = by.place(id, QUEUE, key);
                    assert!(layout.leads_to(there, QUEUE, key));
                    let looked = without.earlier_places(id, QUEUE, key);
                    let is_found = there == without.place(id, QUEUE, key) || looked.contains(&there);
                    // A reader of the record sees the same as a caller that enqueues it again.
                    assert_eq!(without.leads_to(there, QUEUE, key), is_found, "{id} {key:?} {there:?}");
                    if is_found { found += 1 } else { misplaced += 1 }
                }
            }
        }
        assert!(100 < found && 100 < misplaced, "{found} {misplaced}");
    }

    #[test]
    fn a_derived_id_takes_the_bucket_of_what_places_its_job() {
        let layout = Layout::default().changed(8, 0, NOW).unwrap();
        for n in 0..100 {
            let (key, id) = (n.to_string(), derived("a"));
            let Place { home, id: placed } = layout.place(id, QUEUE, Some(&key));
            assert_eq!(layout.homes_of_key(QUEUE, &key)[0], home);
            assert_eq!(layout.homes_of(placed)[0], home);
            assert_eq!(layout.place(placed, QUEUE, Some(&key)), Place { home, id: placed });
            let own = JobId::derived(QUEUE, Some(&key), "a");
            assert_eq!(layout.place(own, QUEUE, Some(&key)), Place { home, id: own });
            // One shard had it with its id unchanged, possibly this one.
            assert!(layout.earlier_places(id, QUEUE, Some(&key)).contains(&Place { home: 0, id }));
        }
    }

    #[test]
    fn a_pinned_queue_has_one_home_and_remembers_those_before() {
        let layout = Layout::default().changed(8, 0, NOW).unwrap();
        let pinned = layout.placing(QUEUE, Placement::Pinned, 4, NOW).unwrap();
        let again = pinned.placing(QUEUE, Placement::Spread, 0, NOW).unwrap();
        assert_eq!((pinned.epoch, pinned.is_told, again.epoch), (5, false, 6));
        assert_eq!(Layout::decode(&pinned.encode(), &pinned.pins.encode()).unwrap(), pinned);
        let home = pinned.home_of_queue(QUEUE).unwrap();
        assert_eq!((again.home_of_queue(QUEUE), pinned.home_of_queue("other")), (None, None));
        for n in 0..100 {
            let key = n.to_string();
            for (id, key) in [(made(n), None), (made(n), Some(&*key)), (derived(&key), None)] {
                let (spread, there) = (layout.place(id, QUEUE, key), pinned.place(id, QUEUE, key));
                assert_eq!((there.home, pinned.homes_of(there.id)[0]), (home, home));
                assert_eq!(pinned.place(there.id, QUEUE, key), there);
                assert_eq!(again.place(id, QUEUE, key), spread);
                assert_eq!(pinned.place(id, "other", key), spread);
                // Each placement is checked from the other, even if both lead to one shard.
                let both = [pinned.earlier_places(id, QUEUE, key), again.earlier_places(id, QUEUE, key)];
                assert_eq!(both[0].contains(&spread), spread != there, "{n}");
                assert_eq!(both[1].contains(&there), spread != there, "{n}");
                for place in [there, Place { home: 0, id }] {
                    assert!(place == there || both[0].contains(&place), "with one shard it was here");
                }
                let others = |layout: &Layout| layout.earlier_places(id, "other", key);
                assert_eq!((others(&pinned), others(&again)), (others(&layout), others(&layout)));
            }
            let (now, then) = (pinned.homes_of_key(QUEUE, &key), again.homes_of_key(QUEUE, &key));
            assert_eq!((now[0], then[0]), (home, layout.homes_of_key(QUEUE, &key)[0]));
            assert!(now.contains(&then[0]) && then.contains(&home));
        }
        // It did not exist if it was made long after the change.
        let late = made_at(NOW.as_ms() + CLOCKS_APART_MS + 1, 3);
        assert_eq!(pinned.earlier_places(late, QUEUE, None), []);
        let later = NOW.after(std::time::Duration::from_millis(2 * CLOCKS_APART_MS));
        let pinned = layout.placing(QUEUE, Placement::Pinned, 0, later).unwrap();
        assert_ne!(pinned.earlier_places(late, QUEUE, None), []);
        assert_eq!(pinned.earlier_places(late, "other", None), []);
    }

    #[test]
    fn with_one_shard_a_pin_changes_nothing() {
        let pinned = Layout::default().placing(QUEUE, Placement::Pinned, 0, NOW).unwrap();
        for layout in [pinned.placing(QUEUE, Placement::Spread, 0, NOW).unwrap(), pinned] {
            for (id, key) in
                [(made(5), None), (made(5), Some("key")), (derived("a"), None), (derived("a"), Some("key"))]
            {
                assert_eq!(layout.place(id, QUEUE, key), Place { home: 0, id });
                assert_eq!(layout.earlier_places(id, QUEUE, key), []);
            }
            assert_eq!((layout.homes_of_key(QUEUE, "key"), layout.is_told), (vec![0], true));
        }
    }
}
