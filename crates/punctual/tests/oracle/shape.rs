//! What a history is made of, apart from its steps: each part is drawn from a stream of its own, so that no two of them always
//! come together, and none shuts another one out.

use fastrand::Rng;

/// The parts of a history.
#[expect(clippy::struct_excessive_bools, reason = "each is there or not, apart from the others")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) handles: usize,
    /// Most jobs meet in a concurrency key, and queues have limits.
    pub(crate) keyed: bool,
    /// Jobs are of groups, which have limits.
    pub(crate) groups: bool,
    /// Most jobs have a unique key.
    pub(crate) unique: bool,
    /// A worker is not named after the instance that calls for it.
    pub(crate) apart: bool,
    /// Operators are busy beside the rest.
    pub(crate) operators: bool,
}

impl Shape {
    pub(crate) fn of(seed: u64) -> Self {
        Self {
            handles: 1 + usize::from(draw(seed, 1, 2)),
            keyed: draw(seed, 2, 3),
            groups: draw(seed, 3, 3),
            unique: draw(seed, 4, 2),
            apart: draw(seed, 5, 2),
            operators: !draw(seed, 6, 4),
        }
    }

    /// As it once followed from the residues of a seed: what the seeds found that were kept then, they find again.
    pub(crate) fn once(seed: u64) -> Self {
        Self {
            handles: 1 + (seed % 2) as usize,
            keyed: seed.is_multiple_of(4),
            groups: matches!(seed % 8, 3 | 5),
            unique: false,
            apart: false,
            operators: false,
        }
    }
}

fn draw(seed: u64, part: u64, one_in: u32) -> bool {
    let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part.rotate_right(8));
    // The first number of neighbours is not far enough from theirs.
    let _ = rng.u64(..);
    rng.u32(..one_in) == 0
}
