//! Cuts a failing history down: chunks of steps, ever smaller, then single items of a step, as long as it still fails.

use crate::op::Step;

/// Runs spent on one history at most.
const RUNS_MAX: usize = 1_000;

/// The smallest history found that still fails.
pub(crate) fn shrink(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut runs = 0;
    let mut fails = |steps: &[Step]| {
        runs += 1;
        (runs <= RUNS_MAX).then(|| fails(steps))
    };
    let mut chunk = steps.len().div_ceil(2).max(1);
    loop {
        let mut from = 0;
        let mut cut = false;
        while from < steps.len() {
            let to = (from + chunk).min(steps.len());
            let rest = [&steps[..from], &steps[to..]].concat();
            match fails(&rest) {
                Some(true) => (steps, cut) = (rest, true),
                Some(false) => from = to,
                None => return steps,
            }
        }
        if chunk == 1 && !cut {
            break;
        }
        chunk = if cut { chunk } else { chunk.div_ceil(2) };
    }
    let mut i = 0;
    while i < steps.len() {
        let smaller = steps[i].op.smaller().into_iter().find_map(|op| {
            let mut candidate = steps.clone();
            candidate[i].op = op;
            (fails(&candidate) == Some(true)).then_some(candidate)
        });
        match smaller {
            Some(candidate) => steps = candidate,
            None => i += 1,
        }
    }
    steps
}
