//! Rate limiters.

use crate::{
    core::{
        rate::{Log, Logged, Rate},
        time::Timestamp,
    },
    store::{Allowance, Arithmetic, LimitOp},
};

use super::Tools;

/// The calls that count, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    at: Vec<u64>,
    /// When the last of them expires, by the period under which it was counted.
    ends: u64,
}

impl Tools {
    pub(crate) fn limit(&mut self, now: Timestamp, op: &LimitOp) -> Allowance {
        match op.rule.arithmetic() {
            Arithmetic::Log(log) => self.log(log, now.as_ms(), op),
            Arithmetic::Rate(rate) => self.rate(rate, now.as_ms(), op),
        }
    }

    fn log(&mut self, log: Log, now: u64, op: &LimitOp) -> Allowance {
        let calls = self.logs.entry((op.name.clone(), op.key.clone())).or_default();
        if calls.at.last().is_some_and(|last| log.begins_anew(*last, calls.ends, now)) {
            calls.at.clear();
        }
        let kept = |back: u32| calls.at.iter().rev().nth(back as usize).copied();
        let (entered, said) = match log.judge(kept, now, op.cost) {
            Logged::Passed(at) => (Some(at), Allowance::Allowed),
            Logged::Refused(at, until) => (at, Allowance::until(until, now)),
        };
        if let Some(at) = entered {
            calls.at.extend((0..op.cost).map(|_| at));
            calls.at = calls.at.split_off(calls.at.len().saturating_sub(log.max as usize));
            calls.ends = at + log.period_ms;
        }
        said
    }

    fn rate(&mut self, rate: Rate, now: u64, op: &LimitOp) -> Allowance {
        let key = (op.name.clone(), op.key.clone());
        let (kept, is_changed) = rate.clamped(self.tats.get(&key).copied(), now);
        let (keep, said) = match rate.pass(kept, now, op.cost) {
            Ok(next) => (Some(next), Allowance::Allowed),
            Err(at) => (kept.filter(|_| is_changed), Allowance::until(at, now)),
        };
        if let Some(tat) = keep {
            self.tats.insert(key, tat);
        }
        said
    }
}
