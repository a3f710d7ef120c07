//! Where a record lies: the row number that follows from an id.
//!
//! Half of what an index on the id would cost is saved by not having one: a record is put at the slot of its id, or, where
//! another id has that slot, into the next free one behind it. How far behind is the most it ever was is kept as the store's
//! `reach`, so that an id is found between its slot and `reach` behind it: nearly always in one step. Since the slots of
//! made ids rise with their time, records lie in the order of their making, and a batch touches few pages.
//!
//! ```text
//! made      0 │ 42 ms │ 12 counter │ 9 random      (until the year 2109)
//! others    1 │ 48 hash or ms │ 12 hash │ 2 hash
//! ```

use rusqlite::params;

use crate::{
    core::id::JobId,
    store::sqlite::engine::{fault::Step, sql::named, tx::Tx},
};

const SLOTS: &str = named(include_str!("../sql/codec.sql"), "slots");

/// Bits behind the milliseconds of a made id.
const MADE_MS_SHIFT: u32 = 21;
/// Bits behind the milliseconds, or what is hash in their place, of other ids.
const OTHER_MS_SHIFT: u32 = 14;
/// Where the slots of other ids begin.
pub(crate) const OTHERS: i64 = 1 << 62;

/// The 48 bits that an id begins with: milliseconds, or hash.
pub(crate) fn ms_of(id: JobId) -> u64 {
    let b = id.as_bytes();
    u64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]])
}

/// The slot of an id.
pub(crate) fn slot(id: JobId) -> i64 {
    let b = id.as_bytes();
    let ms = ms_of(id);
    let counter = u64::from(u16::from_be_bytes([b[6] & 0x0f, b[7]]));
    // Behind the shard, which is the same for all ids of one store.
    let random = u64::from(u16::from_be_bytes([b[9] << 4 | b[10] >> 4, b[10] << 4]));
    let slot = if is_made(id) {
        ms << MADE_MS_SHIFT | counter << 9 | random >> 7
    } else {
        1 << 62 | ms << OTHER_MS_SHIFT | counter << 2 | random >> 14
    };
    slot.cast_signed()
}

/// The highest slot that an id of these milliseconds can have by itself, among made or other ids.
pub(crate) fn last_slot(made: bool, ms: u64) -> i64 {
    match (made, ms >> 42) {
        (true, 0) => ((ms + 1) << MADE_MS_SHIFT).cast_signed() - 1,
        (true, _) => OTHERS - 1,
        (false, _) => OTHERS | (((ms + 1) << OTHER_MS_SHIFT) - 1).cast_signed(),
    }
}

/// The milliseconds, or what is hash in their place, of whatever has this slot by itself.
pub(crate) const fn ms_at(slot: i64) -> u64 {
    if slot < OTHERS {
        (slot >> MADE_MS_SHIFT).cast_unsigned()
    } else {
        ((slot ^ OTHERS) >> OTHER_MS_SHIFT).cast_unsigned()
    }
}

fn is_made(id: JobId) -> bool {
    !id.is_derived() && ms_of(id) >> 42 == 0
}

/// Where a new record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The id has a record.
    Known,
    /// It has none; this slot is free.
    Free(i64),
}

impl Tx<'_> {
    /// The slots between which an id lies, if it is there.
    pub(crate) fn slots(&mut self, id: JobId) -> Step<(i64, i64)> {
        let first = slot(id);
        Ok((first, first.saturating_add(self.reach()?)))
    }

    /// Looks for an id, and for the slot where its record would go.
    pub(crate) fn find_slot(&mut self, id: JobId) -> Step<Found> {
        let (first, last) = self.slots(id)?;
        let mut stmt = self.conn.prepare_cached(SLOTS)?;
        let mut free = first;
        {
            let mut rows = stmt.query(params![first, last])?;
            while let Some(row) = rows.next()? {
                if row.get_ref(1)?.as_blob().is_ok_and(|found| found == id.as_bytes()) {
                    return Ok(Found::Known);
                }
                free += i64::from(row.get::<_, i64>(0)? == free);
            }
        }
        if last < free {
            // All slots within reach are taken: the reach grows.
            while stmt.exists(params![free, free])? {
                free += 1;
            }
            self.set_reach(free - first)?;
        }
        Ok(Found::Free(free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::id::IdMaker;

    #[test]
    fn slots_of_made_ids_rise_with_time_and_counter() {
        let mut maker = IdMaker::default();
        let mut last = slot(maker.make(1_795_192_330_000, 0, u64::MAX));
        for i in 0..10_000_u64 {
            let id = maker.make(1_795_192_330_000 + i / 5_000, 0, i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!(last < slot(id));
            assert_eq!(ms_at(slot(id)), ms_of(id));
            assert!(slot(id) <= last_slot(true, ms_of(id)));
            last = slot(id);
        }
    }

    #[test]
    fn other_ids_have_slots_of_their_own() {
        let far = IdMaker::default().make(1 << 47, 1_023, u64::MAX);
        let derived = JobId::derived("mail", None, "k");
        for id in [far, derived] {
            assert!(OTHERS <= slot(id));
            assert_eq!(ms_at(slot(id)), ms_of(id));
            assert!(slot(id) <= last_slot(false, ms_of(id)));
        }
    }

    #[test]
    fn ids_of_one_time_and_counter_are_parted_by_what_is_random() {
        let id = |random: u64| IdMaker::default().make(1_795_192_330_000, 0, random);
        assert_ne!(slot(id(0)), slot(id(1 << 51)));
        assert_ne!(slot(id(0)), slot(id(1 << 43)));
        assert_eq!(slot(id(0)), slot(id(1 << 42)));
    }
}
