//! What runs tell and give, put into whatever settles and extends.

use fastrand::Rng;
use punctual::{
    Payload,
    job::{LogLine, Notes, Progress},
    store::Verdict,
};

use crate::op::Op;

/// One run in so many tells something, or gives a result.
const ONE_IN: u32 = 3;
/// One of those is refused.
const TOO_MUCH_ONE_IN: u32 = 40;

pub(super) struct Words(Rng);

impl Words {
    pub(super) fn of(seed: u64) -> Self {
        Self(Rng::with_seed(seed.rotate_left(16)))
    }

    pub(super) fn speak(&mut self, op: &mut Op) {
        match op {
            Op::Extend(beats) => {
                for (_, notes) in beats {
                    *notes = self.chance(ONE_IN).then(|| self.notes());
                }
            }
            Op::Settle(ends, _) => {
                for (_, verdict) in ends {
                    if *verdict == Verdict::Ack && self.chance(ONE_IN) {
                        *verdict = Verdict::AckWith { result: self.result() };
                    }
                }
            }
            _ => {}
        }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.0.u32(..one_in) == 0
    }

    fn result(&mut self) -> Payload {
        let bytes = match self.0.u8(..6) {
            0 => 0,
            1 => 300,
            2 => 3_000,
            _ if self.chance(TOO_MUCH_ONE_IN) => 64 * 1024 + 1,
            _ => self.0.usize(..9),
        };
        let content_type = if self.0.bool() { Payload::JSON } else { "text/plain" };
        Payload { bytes: vec![b'7'; bytes], content_type: content_type.into() }
    }

    fn notes(&mut self) -> Notes {
        let mut notes = Notes::default();
        if self.0.bool() {
            let total = self.0.bool().then(|| self.0.u64(..9));
            let message = self.0.bool().then(|| "h\u{e9}".repeat(self.0.usize(..200)));
            notes.report(Progress { done: self.0.u64(..9), total, message });
        }
        for n in 0..self.0.u32(..3) {
            notes.push(LogLine { attempt: n, at_ms: self.0.u64(..9), text: "line \"1\"\n\0".to_owned() });
        }
        if self.chance(TOO_MUCH_ONE_IN) {
            notes.log = vec![LogLine { attempt: 1, at_ms: 0, text: "x".repeat(1_025) }; 4];
        }
        notes
    }
}
