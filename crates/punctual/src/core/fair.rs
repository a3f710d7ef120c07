//! How the groups of a queue share it (S16): self-clocked fair queueing. Pure.
//!
//! Golestani, "A Self-Clocked Fair Queueing Scheme for Broadband Applications", INFOCOM 1994, with a job for a packet: who comes has a
//! *tag* of the queue's time and about a step, [`STRIDE`] over the group's weight; the group with the least tag is served next, its tag is
//! the queue's time from then on, and grows by a step. So who comes stands behind all who wait for their first turn already, however many
//! come, nobody saves up while there is nothing to do, nobody gets ahead by coming and going, and of who leaves nothing need be
//! remembered.

use crate::core::limits::GROUP_WEIGHT_MAX;

/// What the tag of a group of weight 1 grows by. Steps are whole numbers: with more than twice `w × (w + 1)` of the largest weight,
/// what is cut off, or given to who comes, gives nobody a job more than the rule says. Stores keep tags in 7 bytes: enough for 10^12
/// starts.
pub(crate) const STRIDE: u64 = 65_536;

const _: () = assert!(2 * (GROUP_WEIGHT_MAX as u64) * (GROUP_WEIGHT_MAX as u64 + 1) < STRIDE);

/// What the tag of a group grows by as one of its jobs starts. `weight`: 1 to 100.
pub(crate) const fn step(weight: u32) -> u64 {
    STRIDE / weight as u64
}

/// The tag of a group that comes at a queue's time: before the next turn of those that had theirs at that time.
pub(crate) const fn come(time: u64, weight: u32) -> u64 {
    time + step(weight) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between two starts of one group any other gets at most the quotient of their weights, rounded up, and one more.
    #[test]
    fn shares_are_as_weights_are() {
        for (g, h) in (1..=GROUP_WEIGHT_MAX).flat_map(|g| (1..=GROUP_WEIGHT_MAX).map(move |h| (g, h))) {
            // All starts of h with tags from that of one start of g to that of the next one, should it leave and come each time.
            let most = step(g) / come(0, h) + 1;
            assert!(most <= u64::from(h.div_ceil(g)) + 1, "{h} beside {g}: {most}");
        }
    }
}
