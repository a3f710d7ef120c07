//! Steps on documents, put between the others of a history. They are drawn apart from them, so that the histories of old
//! seeds stay what they were.

use fastrand::Rng;
use punctual::store::{DocOp, Precondition};

use crate::op::{Op, Step};

/// Before one step in so many comes one on documents.
const ONE_IN: u32 = 3;

/// Few, so that they meet.
const KEYS: [&str; 4] = ["a", "a/1", "a/1", "b"];

pub(crate) fn mix(steps: Vec<Step>, seed: u64, handles: usize) -> Vec<Step> {
    let mut rng = Rng::with_seed(!seed);
    let mut mixed = Vec::with_capacity(steps.len() * 3 / 2);
    for step in steps {
        if rng.u32(..ONE_IN) == 0 {
            mixed.push(Step { handle: rng.usize(..handles), op: Op::Doc(op(&mut rng)) });
        }
        mixed.push(step);
    }
    mixed
}

fn op(rng: &mut Rng) -> DocOp {
    let key = KEYS[rng.usize(..KEYS.len())].to_owned();
    let precondition = match rng.u8(..4) {
        0 => Precondition::Always,
        1 => Precondition::IfAbsent,
        // The first has version 1.
        _ => Precondition::IfVersion(rng.u64(..8)),
    };
    match rng.u8(..10) {
        0..6 => {
            let n = if rng.u8(..40) == 0 { 65_537 } else { rng.usize(..2) };
            DocOp::Put { key, precondition, value: vec![rng.u8(b'0'..b'3'); n] }
        }
        6 => DocOp::Remove { key, precondition },
        7 => DocOp::Get { key },
        _ => DocOp::List {
            prefix: ["", "a", "a/"][rng.usize(..3)].to_owned(),
            after: rng.bool().then_some(key),
            limit: rng.usize(..4),
        },
    }
}
