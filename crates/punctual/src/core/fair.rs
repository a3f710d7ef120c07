//! How the groups of a queue share it (S16): self-clocked fair queueing. Pure.
//!
//! See Golestani, "A Self-Clocked Fair Queueing Scheme for Broadband Applications", INFOCOM 1994, with jobs as
//! packets. Each active group has a *tag*. The group with the least tag is served next. Its tag becomes the queue's
//! time, and then grows by a step: [`STRIDE`] over the group's weight. A group that is activated gets a tag of the
//! queue's time plus about one step.
//!
//! So a new group is served after all groups that already wait for their first service, however many are activated.
//! Idle groups accumulate no credit. Leaving and coming back is no advantage. Nothing needs to be remembered of a
//! group that left.

use crate::core::limits::GROUP_WEIGHT_MAX;

/// By how much the tag of a group of weight 1 grows. Steps are rounded to whole numbers, and an activated group
/// starts one below a full step. With `STRIDE` above `2 × w × (w + 1)` of the largest weight, neither gives a group a
/// job more than the rule allows. Stores keep tags in 7 bytes: scripts count exactly up to 2^53, which is enough for 10^11 starts.
pub(crate) const STRIDE: u64 = 65_536;

const _: () = assert!(2 * (GROUP_WEIGHT_MAX as u64) * (GROUP_WEIGHT_MAX as u64 + 1) < STRIDE);

/// Returns by how much the tag of a group grows when one of its jobs starts. `weight`: 1 to 100.
pub(crate) const fn step(weight: u32) -> u64 {
    STRIDE / weight as u64
}

/// Returns the tag of a group that is activated at a queue's time: before the next service of groups that were served
/// then.
pub(crate) const fn come(time: u64, weight: u32) -> u64 {
    time + step(weight) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between two starts of one group, any other gets at most the quotient of their weights, rounded up, plus one.
    #[test]
    fn shares_are_as_weights_are() {
        for (g, h) in (1..=GROUP_WEIGHT_MAX).flat_map(|g| (1..=GROUP_WEIGHT_MAX).map(move |h| (g, h))) {
            // All starts of h with tags between those of two starts of g, if h leaves and comes back each time.
            let most = step(g) / come(0, h) + 1;
            assert!(most <= u64::from(h.div_ceil(g)) + 1, "{h} beside {g}: {most}");
        }
    }
}
