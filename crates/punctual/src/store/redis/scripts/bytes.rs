//! Flat binary: the format between scripts and their callers. Whole numbers are big-endian, as the members of sorted
//! sets need them.

use crate::core::{
    error::{Error, ErrorKind, Result},
    id::JobId,
    time::Timestamp,
};

/// The first length of a chunk that takes four more bytes.
const LONG: u8 = 255;

/// Appends to flat binary.
pub(crate) trait Put {
    /// Appends the low `width` bytes of a number.
    fn number(&mut self, n: u64, width: usize);
    /// Appends a length and these bytes.
    fn chunk(&mut self, bytes: &[u8]);
}

impl Put for Vec<u8> {
    fn number(&mut self, n: u64, width: usize) {
        self.extend_from_slice(&n.to_be_bytes()[8 - width..]);
    }

    fn chunk(&mut self, bytes: &[u8]) {
        match u8::try_from(bytes.len()) {
            Ok(length) if length < LONG => self.push(length),
            _ => {
                self.push(LONG);
                self.number(bytes.len() as u64, 4);
            }
        }
        self.extend_from_slice(bytes);
    }
}

/// Reads flat binary from front to back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn number(&mut self, width: usize) -> Result<u64> {
        Ok(self.take(width)?.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp> {
        Timestamp::from_ms(self.number(6)?)
    }

    pub(crate) fn id(&mut self) -> Result<JobId> {
        let id = self.take(16)?.try_into().map_err(|_| short())?;
        JobId::from_bytes(id)
    }

    pub(crate) fn chunk(&mut self) -> Result<Self> {
        let length = match self.byte()? {
            LONG => self.number(4)? as usize,
            length => length.into(),
        };
        self.take(length).map(Self)
    }

    /// Reads a text that is for people, or that nothing depends on: what is not UTF-8 is replaced, so that it stops nothing.
    pub(crate) fn words(self) -> String {
        String::from_utf8_lossy(self.0).into_owned()
    }

    pub(crate) fn text(self) -> Result<String> {
        String::from_utf8(self.0.to_vec())
            .map_err(|e| Error::new(ErrorKind::Corrupt, "read text that is not UTF-8").with_source(e))
    }
}

fn short() -> Error {
    Error::new(ErrorKind::Corrupt, "read fewer bytes than there should be")
}
