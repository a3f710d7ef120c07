//! Job ids: made, or derived from an idempotency key. Pure: time and randomness are arguments.
//!
//! Both kinds are UUIDs with these bits:
//!
//! ```text
//! made      48 ms │ version 7 │ 12 counter │ variant │ 10 shard  │ 52 random
//! derived   48 hash │ version 8 │ 12 hash  │ variant │ 10 bucket │ 52 hash
//! ```
//!
//! (In a derived id, an order can replace the first bits of the hash; see [`JobId::led_by`].)
//!
//! An id alone is enough to find its job: a made id names its shard, a derived id names a bucket that the store maps
//! to a shard. Made ids sort in the order in which they were made. Hashes are SHA-1 as in UUID version 5 (RFC 9562
//! §5.5).

use std::{fmt, str::FromStr};

use uuid::{Builder, Uuid};

use crate::core::{
    error::{Error, Result},
    limits::SHARDS_MAX,
};

/// The UUID version of derived ids.
pub(crate) const DERIVED_VERSION: usize = 8;

/// The bits of hash before the variant of a derived id.
const HASH_BITS: u32 = 60;

/// The name space of derived ids and buckets.
const NAMESPACE: Uuid = Uuid::from_u128(0x9a1d_5c62_6f0e_5b1f_8a44_7075_6e63_7475);

/// The id of a job: a UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Uuid);

impl JobId {
    /// Returns the id that `key` stands for in `queue`, for any kind.
    ///
    /// The same three texts always give the same id.
    ///
    /// `placement_key` is the job's group, else its concurrency key, else its unique key, else none. It decides the
    /// bucket; if there is none, `key` does. So jobs that are compared with each other are in one shard. A store with
    /// several shards can place the job by its queue instead, if that is pinned. The id then names another bucket:
    /// use the id that the enqueue returns.
    pub fn derived(queue: &str, placement_key: Option<&str>, key: &str) -> Self {
        Self::derived_within(None, queue, placement_key, key)
    }

    /// Returns the id that `key` stands for in `queue` among the jobs of one kind.
    ///
    /// The same four texts always give the same id. Otherwise it is like [`JobId::derived`].
    pub fn derived_of_kind(kind: &str, queue: &str, placement_key: Option<&str>, key: &str) -> Self {
        Self::derived_within(Some(kind), queue, placement_key, key)
    }

    /// Derives the id within a kind, or across kinds if `kind` is `None`.
    pub(crate) fn derived_within(
        kind: Option<&str>,
        queue: &str,
        placement_key: Option<&str>,
        key: &str,
    ) -> Self {
        let mut name = Vec::with_capacity(queue.len() + key.len() + 64);
        for part in [queue, placement_key.unwrap_or(""), key] {
            // Lengths first, so that no two lists have the same encoding.
            name.extend_from_slice(&(part.len() as u64).to_le_bytes());
            name.extend_from_slice(part.as_bytes());
        }
        name.push(u8::from(placement_key.is_some()));
        name.extend_from_slice(kind.unwrap_or_default().as_bytes());
        let mut bytes = Uuid::new_v5(&NAMESPACE, &name).into_bytes();
        put_shard(&mut bytes, bucket(placement_key.unwrap_or(key)));
        Self(Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// Returns the same derived id with `order` in its first `bits` bits.
    ///
    /// They replace bits of its hash, at most 60.
    /// Among jobs that are due at the same instant, those with a lower order run first (S6). The id still leads to
    /// its job. Use one order per key, because each order gives another id. If many keys share an order, leave enough
    /// bits of hash: 24 for a million keys.
    #[must_use]
    pub fn led_by(self, order: u64, bits: u32) -> Self {
        debug_assert!(self.is_derived(), "a made id has an order");
        let kept = HASH_BITS - bits.min(HASH_BITS);
        let mut bytes = *self.as_bytes();
        let first = u64::from_be_bytes([0, 0, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]);
        let hash = first << 12 | u64::from(u16::from_be_bytes([bytes[6] & 0x0f, bytes[7]]));
        let order = order << kept & ((1 << HASH_BITS) - 1);
        let led = order | hash & ((1 << kept) - 1);
        bytes[..6].copy_from_slice(&(led >> 12).to_be_bytes()[2..]);
        bytes[6] = bytes[6] & 0xf0 | (led >> 8) as u8 & 0x0f;
        bytes[7] = led as u8;
        Self(Uuid::from_bytes(bytes))
    }

    /// Returns whether the id stands for an idempotency key.
    pub const fn is_derived(self) -> bool {
        self.0.get_version_num() == DERIVED_VERSION
    }

    /// Returns the shard of a made id, or the bucket of a derived one: 0 to 1,023.
    pub const fn shard(self) -> u16 {
        let b = self.0.as_bytes();
        (((b[8] & 0x3f) as u16) << 4) | ((b[9] >> 4) as u16)
    }

    /// Returns when a made id was made, in Unix milliseconds by the clock of its maker.
    #[cfg(feature = "redis")]
    pub(crate) const fn made_ms(self) -> Option<u64> {
        let b = self.0.as_bytes();
        let ms = u64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]]);
        if self.is_derived() { None } else { Some(ms) }
    }

    /// Returns whether both ids are the same except for their shard or bucket.
    #[cfg(feature = "cron")]
    pub(crate) fn is_same_elsewhere(self, other: Self) -> bool {
        self.with_shard(0) == other.with_shard(0)
    }

    /// Returns the same id with another shard.
    #[cfg(any(feature = "redis", feature = "cron"))]
    pub(crate) fn with_shard(self, shard: u16) -> Self {
        let mut bytes = *self.as_bytes();
        put_shard(&mut bytes, shard);
        Self(Uuid::from_bytes(bytes))
    }

    /// Returns the 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// Makes an id from 16 bytes.
    ///
    /// # Errors
    /// `Invalid` for bytes that are no id of this library.
    pub fn from_bytes(bytes: [u8; 16]) -> Result<Self> {
        let id = Uuid::from_bytes(bytes);
        if matches!(id.get_version_num(), 7 | 8) && id.get_variant() == uuid::Variant::RFC4122 {
            Ok(Self(id))
        } else {
            Err(Error::invalid(format!("{id} is not a job id (a UUID of version 7 or 8 that punctual made)"))
                .with_hint("use it as idempotency_key instead"))
        }
    }

    /// Returns the low 16 bits.
    ///
    /// They spread out the retries of jobs whose worker died (S9).
    pub const fn low16(self) -> u16 {
        let b = self.0.as_bytes();
        ((b[14] as u16) << 8) | b[15] as u16
    }

    /// Returns the last eight hexadecimal digits, as listings show the id.
    pub fn short(self) -> String {
        let s = self.0.simple().to_string();
        s[24..].to_owned()
    }
}

/// Returns the bucket of a placement key or idempotency key: 0 to 1,023.
pub(crate) fn bucket(key: &str) -> u16 {
    let hash = Uuid::new_v5(&NAMESPACE, key.as_bytes()).into_bytes();
    u16::from_be_bytes([hash[0], hash[1]]) % SHARDS_MAX
}

/// Writes ten bits after the variant.
fn put_shard(bytes: &mut [u8; 16], shard: u16) {
    bytes[8] = (bytes[8] & 0xc0) | (shard >> 4) as u8 & 0x3f;
    bytes[9] = (bytes[9] & 0x0f) | ((shard & 0x0f) << 4) as u8;
}

/// Makes ids that rise in the order in which they are made. Each client has one.
#[derive(Debug, Default)]
pub struct IdMaker {
    ms: u64,
    counter: u16,
}

impl IdMaker {
    /// Makes the next id.
    ///
    /// Ids of one maker rise whatever `now_ms` is. The 4,097th id in a millisecond, or one after the clock went back,
    /// continues from the last id.
    pub fn make(&mut self, now_ms: u64, shard: u16, random: u64) -> JobId {
        if now_ms > self.ms {
            (self.ms, self.counter) = (now_ms, 0);
        } else if self.counter < 0xfff {
            self.counter += 1;
        } else {
            (self.ms, self.counter) = (self.ms + 1, 0);
        }
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&self.ms.to_be_bytes()[2..]);
        bytes[6..8].copy_from_slice(&self.counter.to_be_bytes());
        bytes[8..].copy_from_slice(&random.to_be_bytes());
        put_shard(&mut bytes, shard % SHARDS_MAX);
        JobId(
            Builder::from_bytes(bytes)
                .with_version(uuid::Version::SortRand)
                .with_variant(uuid::Variant::RFC4122)
                .into_uuid(),
        )
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let shown = || s.chars().take(64).collect::<String>();
        let id = Uuid::try_parse(s).map_err(|_| {
            Error::invalid(format!("{:?} is not a job id", shown()))
                .with_hint("a job id is a UUID as `punctual ls -o ids` prints it")
        })?;
        Self::from_bytes(id.into_bytes())
    }
}

impl serde::Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for JobId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = std::borrow::Cow::<'de, str>::deserialize(d)?;
        s.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_ids_rise_whatever_the_clock_does() {
        let mut maker = IdMaker::default();
        let mut last = maker.make(1_000, 0, u64::MAX);
        for i in 0..10_000u64 {
            let id =
                maker.make(if i % 3 == 0 { 900 } else { 1_000 }, 0, i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!(last < id, "{last} then {id}");
            last = id;
        }
    }

    #[test]
    fn an_id_names_its_shard_and_survives_its_text() {
        for shard in [0, 1, 15, 16, 1_023] {
            let id = IdMaker::default().make(1_795_192_330_000, shard, u64::MAX);
            assert_eq!((id.shard(), id.is_derived()), (shard, false));
            assert_eq!(id.to_string().parse::<JobId>().unwrap(), id);
        }
    }

    #[test]
    fn derived_ids_depend_on_all_three_texts() {
        let a = JobId::derived("mail", None, "k");
        assert!(a.is_derived());
        assert_eq!(a, JobId::derived("mail", None, "k"));
        assert_eq!(a.shard(), bucket("k"));
        for other in [
            JobId::derived_of_kind("k", "mail", None, "k"),
            JobId::derived_of_kind("kk", "mail", None, "k"),
            JobId::derived("mai", None, "lk"),
            JobId::derived("mail", Some(""), "k"),
            JobId::derived("mail", Some("g"), "k"),
        ] {
            assert_ne!(a, other);
        }
        assert_eq!(
            JobId::derived("mail", Some("g"), "k").shard(),
            JobId::derived("mail", Some("g"), "l").shard()
        );
    }

    #[test]
    fn a_derived_id_is_led_by_an_order() {
        let id = |key: &str, order, bits| JobId::derived("mail", None, key).led_by(order, bits);
        for bits in [36, 60] {
            let ids: Vec<JobId> = (0..5_000).map(|n| id(&n.to_string(), n, bits)).collect();
            assert!(ids.is_sorted_by(|a, b| a < b));
        }
        let (plain, led) = (JobId::derived("mail", None, "k"), id("k", 7, 60));
        assert_eq!((led.shard(), led.low16(), led.is_derived()), (plain.shard(), plain.low16(), true));
        assert_eq!(led.to_string().parse::<JobId>().unwrap(), led);
        assert_ne!(id("k", 7, 38), id("l", 7, 38));
        assert_eq!(id("k", u64::MAX, 60).as_bytes()[..8], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x8f, 0xff]);
        assert_eq!(id("k", 9, 0), plain);
    }

    #[test]
    fn foreign_uuids_are_refused() {
        for text in ["", "x", "550e8400-e29b-41d4-a716-446655440000", "00000000-0000-0000-0000-000000000000"]
        {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }
}
