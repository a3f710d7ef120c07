//! Steps on tools, put between the others of a history. They are drawn apart from them, so that the histories of old seeds stay
//! what they were.

use std::time::Duration;

use fastrand::Rng;
use punctual::{
    store::{BoardAct, BoardOp, BoardWindow, LimitOp, LimitRule, LockOp, ToolOp},
    toolkit::Bucket,
};

use crate::op::{Op, Step};

/// Before one step in so many come some on tools.
const ONE_IN: u32 = 2;

pub(crate) fn mix(steps: Vec<Step>, seed: u64, handles: usize) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed.rotate_left(32) ^ 0x7001);
    let mut mixed = Vec::with_capacity(steps.len() * 3);
    for step in steps {
        if rng.u32(..ONE_IN) == 0 {
            for _ in 0..rng.usize(1..5) {
                mixed.push(Step { handle: rng.usize(..handles), op: Op::Tool(op(&mut rng)) });
            }
        }
        mixed.push(step);
    }
    mixed
}

fn op(rng: &mut Rng) -> ToolOp {
    match rng.u8(..10) {
        0..3 => ToolOp::Limit(limit(rng)),
        3..6 => ToolOp::Lock(lock(rng)),
        _ => ToolOp::Board(board(rng)),
    }
}

fn pick<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.usize(..all.len())]
}

fn limit(rng: &mut Rng) -> LimitOp {
    let period = Duration::from_millis(pick(rng, &[1, 7, 1_000, 6_000, 3_600_000]));
    let rule = if rng.bool() {
        LimitRule::Log { max: pick(rng, &[1, 2, 3, 160, 161, 300]), period, counts_refused: rng.u8(..4) == 0 }
    } else {
        LimitRule::Gcra { max: pick(rng, &[1, 3, 7, 1_000_000]), period, burst: pick(rng, &[1, 2, 9]) }
    };
    // Now and then more than it may be.
    let cost_max = rule.cost_max() + u32::from(rng.u8(..20) == 0);
    let cost = if rng.bool() { 1 } else { rng.u32(1..=cost_max) };
    LimitOp { name: "l".to_owned(), key: pick(rng, &["a", "a", "b"]).to_owned(), cost, rule }
}

fn lock(rng: &mut Rng) -> LockOp {
    let name = pick(rng, &["a", "a", "b"]).to_owned();
    let owner = u128::from(rng.u8(..3));
    let lease = Duration::from_millis(pick(rng, &[99, 100, 2_000, 5_000, 86_400_000]));
    match rng.u8(..10) {
        0..5 => LockOp::Acquire { name, owner, lease },
        5..7 => LockOp::Extend { name, owner, lease },
        7 => LockOp::Release { name, owner: rng.bool().then_some(owner) },
        8 => LockOp::Show { name },
        _ => LockOp::List { limit: rng.usize(..3) },
    }
}

fn board(rng: &mut Rng) -> BoardOp {
    let windows = [
        None,
        Some((Bucket::Minute, 2)),
        Some((Bucket::Hour, 1)),
        Some((Bucket::Hour, 4)),
        Some((Bucket::Hour, 4)),
        Some((Bucket::Day, 2)),
    ];
    let window = pick(rng, &windows).map(|(bucket, buckets)| BoardWindow { bucket, buckets });
    let member = pick(rng, &["a", "b", "c", "d", "e", "f"]).to_owned();
    let members_max = pick(rng, &[1_000, 1_000, 1_000, 4, 2]);
    let most = (1 << 53) - 1;
    let large = [i64::MIN, most, -most, most / 4, -most / 4];
    let score = if rng.u8(..8) == 0 { pick(rng, &large) } else { rng.i64(-3..5) };
    let act = match rng.u8(..20) {
        0..3 => {
            let mut members: Vec<(String, i64)> =
                ["a", "b", "c", "d", "e", "f"].map(|member| (member.to_owned(), rng.i64(-3..5))).to_vec();
            rng.shuffle(&mut members);
            members.truncate(rng.usize(1..5));
            members[0].1 = score;
            BoardAct::AddAll { members, members_max }
        }
        3..9 => BoardAct::Add { member, by: score, members_max },
        9..11 => BoardAct::Set { member, score, members_max },
        11..13 => BoardAct::Remove { member },
        13 => BoardAct::Rank { member },
        14 => BoardAct::Size,
        15 => BoardAct::Around { member, n: rng.usize(..3) },
        _ => BoardAct::Top { n: rng.usize(..7) },
    };
    // Who is at one of them removes what is long past of the other.
    BoardOp { name: pick(rng, &["b", "b", "b", "c"]).to_owned(), window, act }
}
