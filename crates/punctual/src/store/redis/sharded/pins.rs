//! Which queues are pinned to one shard, or were. Pure.
//!
//! They belong to the layout, and change by the same write as its epoch, though they stand beside it: so whoever knows a
//! layout knows by which key each queue is placed, and nobody looks at more than the layout's short row to see whether it
//! is still in force. A queue that was pinned once is never forgotten, since its jobs may be where that put them.

use std::collections::BTreeMap;

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        time::Timestamp,
    },
    store::{
        Placement,
        redis::scripts::bytes::{Bytes, Put},
    },
};

/// Queues that are pinned or were; a change that would need more is refused. All of them are read at each change.
const PINS_MAX: usize = 1_000;

/// A queue that is pinned, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) is_pinned: bool,
    /// From which epoch on.
    pub(crate) epoch: u32,
    /// When that was decided, by the clock of shard 0.
    pub(crate) since_ms: u64,
}

/// All of them, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pins(BTreeMap<String, Pin>);

impl Pins {
    /// As they stand in the store.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut rows = Vec::new();
        for (queue, pin) in &self.0 {
            rows.chunk(queue.as_bytes());
            rows.push(u8::from(pin.is_pinned));
            rows.number(pin.epoch.into(), 4);
            rows.number(pin.since_ms, 6);
        }
        rows
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub(crate) fn decode(rows: &[u8]) -> Result<Self> {
        let (mut rows, mut pins) = (Bytes(rows), BTreeMap::new());
        while !rows.is_empty() {
            let queue = rows.chunk()?.text()?;
            let pin = Pin {
                is_pinned: rows.byte()? == 1,
                epoch: rows.number(4)? as u32,
                since_ms: rows.number(6)?,
            };
            pins.insert(queue, pin);
        }
        Ok(Self(pins))
    }

    /// Nothing for a queue that was never pinned.
    pub(crate) fn of(&self, queue: &str) -> Option<Pin> {
        self.0.get(queue).copied()
    }

    /// The queue that an epoch began with placing in another way.
    pub(crate) fn begun_by(&self, epoch: u32) -> Option<&str> {
        self.0.iter().find(|(_, pin)| pin.epoch == epoch).map(|(queue, _)| queue.as_str())
    }

    /// The same with a queue placed in another way from an epoch on.
    ///
    /// # Errors
    /// `Conflict` where too many were pinned.
    pub(crate) fn with(&self, queue: &str, to: Placement, epoch: u32, now: Timestamp) -> Result<Self> {
        let mut pins = self.0.clone();
        let since_ms = now.as_ms();
        pins.insert(queue.to_owned(), Pin { is_pinned: to == Placement::Pinned, epoch, since_ms });
        if pins.len() <= PINS_MAX {
            Ok(Self(pins))
        } else {
            let text = format!("{PINS_MAX} queues are pinned or were, each of them remembered");
            Err(Error::new(ErrorKind::Conflict, text).with_hint("leave this one spread"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::saturating_from_ms(1_800_000_000_000);

    #[test]
    fn pins_survive_their_rows() {
        let pins = Pins::default().with("mail", Placement::Pinned, 7, NOW).unwrap();
        let pins = pins.with(&"n".repeat(255), Placement::Spread, 8, NOW).unwrap();
        assert_eq!(Pins::decode(&pins.encode()).unwrap(), pins);
        assert_eq!(pins.of("mail"), Some(Pin { is_pinned: true, epoch: 7, since_ms: NOW.as_ms() }));
        assert_eq!((pins.begun_by(7), pins.begun_by(9)), (Some("mail"), None));
        assert_eq!(Pins::default().encode(), [0_u8; 0]);
        let rows = pins.encode();
        assert_eq!(Pins::decode(&rows[..rows.len() - 1]).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut pins = Pins::default();
        for n in 0..PINS_MAX {
            pins = pins.with(&n.to_string(), Placement::Pinned, 1, NOW).unwrap();
        }
        assert_eq!(pins.with("more", Placement::Pinned, 2, NOW).unwrap_err().kind(), ErrorKind::Conflict);
        pins.with("0", Placement::Spread, 2, NOW).unwrap();
    }
}
