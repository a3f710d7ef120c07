//! Over how many shards a store is spread, and which shard a job lives in. Pure.
//!
//! A made id names its shard, if there is one of that number: jobs never move. What is compared with each other (a unique
//! key, an id that stands for an idempotency key) has one of 1,024 buckets, and a bucket one shard, its *home*, which follows
//! from the number of shards. That number may change at any time, so that earlier numbers stay known: what was enqueued
//! under them is looked for where it was put, before it is put anywhere else.
//!
//! Each change has a number, the *epoch*. Every shard is told of it before anybody goes by the new layout, and takes jobs of
//! no earlier one from then on: so whoever looks for a key at its old home knows that nobody puts it there any more.

use crate::{
    error::{Error, ErrorKind, Result},
    id::{JobId, SHARDS_MAX, bucket},
    time::Timestamp,
};

use super::bytes::{Bytes, Put};

/// How far the clock of who makes an id may be from the store's before an id enqueued again under another number of shards
/// is taken for a new one, in ms.
const CLOCKS_APART_MS: u64 = 600_000;
/// Earlier numbers of shards that are kept; a change that would need more is refused.
const EARLIER_MAX: usize = 16;

/// How a store is spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Changes so far.
    pub(super) epoch: u32,
    /// Shards that take jobs: 0 to this less 1.
    pub(super) shards: u16,
    /// Other numbers that it had, the newest first, whose shards may hold jobs.
    pub(super) earlier: Vec<u16>,
    /// Whether all shards know of it.
    pub(super) is_told: bool,
    /// When it was decided, by the clock of shard 0.
    pub(super) since_ms: u64,
}

impl Default for Layout {
    /// Of a store that was never told otherwise.
    fn default() -> Self {
        Self { epoch: 0, shards: 1, earlier: Vec::new(), is_told: true, since_ms: 0 }
    }
}

impl Layout {
    /// As it stands in the store.
    pub(super) fn encode(&self) -> Vec<u8> {
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

    /// Reads what [`encode`](Self::encode) wrote; nothing, for a store that was never told otherwise.
    pub(super) fn decode(row: &[u8]) -> Result<Self> {
        if row.is_empty() {
            return Ok(Self::default());
        }
        let mut row = Bytes(row);
        let (epoch, shards, is_told) = (row.number(4)? as u32, row.number(2)? as u16, row.byte()? == 1);
        let since_ms = row.number(6)?;
        let mut earlier = Vec::new();
        while !row.is_empty() {
            earlier.push(row.number(2)? as u16);
        }
        if [shards].iter().chain(&earlier).all(|shards| (1..=SHARDS_MAX).contains(shards)) {
            Ok(Self { epoch, shards, earlier, is_told, since_ms })
        } else {
            Err(Error::new(ErrorKind::Corrupt, "read how many shards the store has"))
        }
    }

    /// Shards that may hold jobs: 0 to this less 1.
    pub(super) fn live(&self) -> u16 {
        self.earlier.iter().copied().fold(self.shards, u16::max)
    }

    /// The same store spread over another number of shards, in an epoch after `seen`.
    ///
    /// # Errors
    /// `Invalid` for a number that no store can have, `Conflict` after too many changes.
    pub(super) fn changed(&self, shards: u16, seen: u32, now: Timestamp) -> Result<Self> {
        if !(1..=SHARDS_MAX).contains(&shards) {
            return Err(Error::invalid(format!("a store has 1 to {SHARDS_MAX} shards, not {shards}")));
        }
        let earlier: Vec<u16> = self.numbers().filter(|other| *other != shards).collect();
        if EARLIER_MAX < earlier.len() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("the store had {EARLIER_MAX} other numbers of shards, each still looked for"),
            )
            .with_hint("choose one of them"));
        }
        let since_ms = now.as_ms().max(self.since_ms);
        Ok(Self { epoch: self.epoch.max(seen) + 1, shards, earlier, is_told: false, since_ms })
    }

    /// The same store, whose shards from `holding` on hold nothing, without the earlier numbers that only they remind of:
    /// what such a number put in a shard that is left, the least number that is left puts there, too.
    pub(super) fn without(&self, holding: u16, seen: u32) -> Self {
        let live =
            self.numbers().filter(|shards| holding.max(self.shards) <= *shards).min().unwrap_or(self.live());
        let earlier = self.earlier.iter().copied().filter(|earlier| *earlier <= live).collect();
        Self { epoch: self.epoch.max(seen) + 1, earlier, is_told: false, ..*self }
    }

    /// Where a job goes, and with which id; `placement_key` as `JobId::derived` has it.
    pub(super) fn place(&self, id: JobId, placement_key: Option<&str>) -> Place {
        place(self.shards, id, placement_key)
    }

    /// Where else the job may be, enqueued before, or what holds its key.
    pub(super) fn earlier_places(&self, id: JobId, placement_key: Option<&str>) -> Vec<Place> {
        let now = self.place(id, placement_key);
        let is_younger = id.made_ms().is_some_and(|made| self.since_ms + CLOCKS_APART_MS < made);
        if placement_key.is_none() && is_younger {
            // Nobody had it while there was another number.
            return Vec::new();
        }
        let places = self.earlier.iter().map(|shards| place(*shards, id, placement_key));
        distinct(places.filter(|place| place.home != now.home))
    }

    /// Where the job of an id may be, the likeliest first.
    pub(super) fn homes_of(&self, id: JobId) -> Vec<u16> {
        distinct(self.numbers().map(|shards| home(shards, id)))
    }

    /// Where the holder of a unique key may be, the likeliest first.
    pub(super) fn homes_of_key(&self, placement_key: &str) -> Vec<u16> {
        let bucket = bucket(placement_key);
        distinct(self.numbers().map(|shards| jump(bucket, shards)))
    }

    fn numbers(&self) -> impl Iterator<Item = u16> {
        [self.shards].into_iter().chain(self.earlier.iter().copied())
    }
}

/// A shard, and an id that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) home: u16,
    pub(super) id: JobId,
}

fn place(shards: u16, id: JobId, placement_key: Option<&str>) -> Place {
    let by_id = home(shards, id);
    match placement_key {
        // An idempotency key has its bucket from the placement key, too.
        Some(key) if !id.is_derived() => {
            let home = jump(bucket(key), shards);
            Place { home, id: if home == by_id { id } else { id.with_shard(home) } }
        }
        _ => Place { home: by_id, id },
    }
}

/// Where an id alone leads to: a made one to the shard that it names, if there is one of that number.
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

/// The shard of a bucket. When shards are added, a bucket stays or goes to a new one: "A Fast, Minimal Memory, Consistent
/// Hash Algorithm", Lamping and Veach, 2014.
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
    use crate::id::IdMaker;

    const NOW: Timestamp = Timestamp::saturating_from_ms(1_800_000_000_000);

    fn made_at(ms: u64, shard: u16) -> JobId {
        IdMaker::default().make(ms, shard, 7)
    }

    fn made(shard: u16) -> JobId {
        made_at(NOW.as_ms(), shard)
    }

    fn derived(key: &str) -> JobId {
        JobId::derived("mail", None, key)
    }

    #[test]
    fn a_layout_survives_its_row() {
        let changed = Layout::default().changed(8, 0, NOW).unwrap().changed(3, 6, NOW).unwrap();
        let since_ms = NOW.as_ms();
        assert_eq!(changed, Layout { epoch: 7, shards: 3, earlier: vec![8, 1], is_told: false, since_ms });
        assert_eq!(Layout::decode(&changed.encode()).unwrap(), changed);
        assert_eq!(Layout::decode(&Layout::default().encode()).unwrap(), Layout::default());
        // Each number of shards, and one that is cut off.
        let row = changed.encode();
        let with = |at: usize, bytes: [u8; 2]| [&row[..at], &bytes, &row[at + 2..]].concat();
        let short = (1..row.len()).filter(|len| *len != 13 && *len != 15).map(|len| row[..len].to_vec());
        for broken in [with(4, [0, 0]), with(4, [0xff, 0xff]), with(15, [0, 0])].into_iter().chain(short) {
            assert_eq!(Layout::decode(&broken).unwrap_err().kind(), ErrorKind::Corrupt, "{broken:?}");
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
        assert_eq!(layout.place(made(5), None), place(5, made(5)));
        assert_eq!(layout.homes_of(made(5)), [5, 0]);
        let fewer = layout.changed(3, 0, NOW).unwrap();
        let there = fewer.place(made(5), None);
        assert!(there.home < 3 && there.id == made(5));
        // Enqueued before, it is where it was; one that was made long after the change was not.
        assert!(fewer.earlier_places(made(5), None).contains(&place(5, made(5))));
        assert_eq!(fewer.earlier_places(made_at(NOW.as_ms() + CLOCKS_APART_MS + 1, 5), None), []);
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
                let Place { home, id } = layout.place(made(shard), Some(&format!("key {n}")));
                assert_eq!(home, layout.homes_of_key(&format!("key {n}"))[0]);
                assert_eq!(layout.homes_of(id)[0], home);
                // Asked again with the id that was answered, it is the same.
                assert_eq!(layout.place(id, Some(&format!("key {n}"))), Place { home, id });
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
                (layout.homes_of(id), layout.place(id, None), layout.earlier_places(id, None)),
                (
                    layout.homes_of_key(&key),
                    layout.place(made(0), Some(&key)),
                    layout.earlier_places(made(0), Some(&key)),
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
}
