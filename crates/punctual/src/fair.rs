//! How the groups of a queue share it (S16): start-time fair queueing. Pure.
//!
//! Goyal, Vin and Cheng, "Start-time Fair Queuing", SIGCOMM 1996, with a job for a packet: each group has a *tag*, which grows by
//! [`STRIDE`] over its weight with each of its jobs that starts; the group with the least tag is served next. The queue's own time is
//! the tag of whom it served last, and who comes back has no lesser one: so nobody saves up while there is nothing to do, and
//! nobody gets ahead by coming and going.

use crate::limits::GROUP_WEIGHT_MAX;

/// What the tag of a group of weight 1 grows by. Steps are whole numbers: with more than `w × (w + 1)` of the largest weight,
/// what is cut off gives nobody a job more than the rule says.
const STRIDE: u64 = 16_384;

const _: () = assert!((GROUP_WEIGHT_MAX as u64) * (GROUP_WEIGHT_MAX as u64 + 1) < STRIDE);

/// What the tag of a group grows by as one of its jobs starts. `weight`: 1 to 100.
pub(crate) const fn step(weight: u32) -> u64 {
    STRIDE / weight as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between two starts of one group any other gets at most the quotient of their weights, rounded up, and one more.
    #[test]
    fn shares_are_as_weights_are() {
        for (g, h) in (1..=GROUP_WEIGHT_MAX).flat_map(|g| (1..=GROUP_WEIGHT_MAX).map(move |h| (g, h))) {
            // All starts of h with tags from that of one start of g to that of the next one.
            let most = step(g) / step(h) + 1;
            assert!(most <= u64::from(h.div_ceil(g)) + 1, "{h} beside {g}: {most}");
        }
    }
}
