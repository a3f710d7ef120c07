//! The answer of a script: an array of bulk strings and small whole numbers.

use redis::Value;

use crate::core::{
    error::{Error, ErrorKind, Result},
    time::Timestamp,
};

/// Reads an answer from front to back.
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(crate) fn of(value: Value) -> Result<Self> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            Value::Nil => Ok(Self(Vec::new().into_iter())),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.len() == 0
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        bytes(self.0.next().unwrap_or(Value::Nil))
    }

    /// Reads the same, but allows that it is missing.
    pub(crate) fn bytes_or_none(&mut self) -> Result<Vec<u8>> {
        bytes_or_none(self.0.next().unwrap_or(Value::Nil))
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        match self.0.next().unwrap_or(Value::Nil) {
            Value::Int(n) => u64::try_from(n).map_err(|_| unexpected(&Value::Int(n))),
            other => {
                let text = bytes(other)?;
                let text = String::from_utf8_lossy(&text);
                text.parse().map_err(|_| {
                    Error::new(ErrorKind::Corrupt, format!("read {text:?} where a number stands"))
                })
            }
        }
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp> {
        self.number().map(Timestamp::saturating_from_ms)
    }
}

/// Reads a single bulk string.
pub(crate) fn bytes(value: Value) -> Result<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}

/// Reads a single bulk string; no bytes if it is missing.
pub(crate) fn bytes_or_none(value: Value) -> Result<Vec<u8>> {
    if value == Value::Nil { Ok(Vec::new()) } else { bytes(value) }
}

/// Reads a single whole number.
pub(crate) fn int(value: &Value) -> Result<i64> {
    match value {
        Value::Int(n) => Ok(*n),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn unexpected(value: &Value) -> Error {
    let kind = match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "text",
        Value::Array(_) => "an array",
        _ => "something",
    };
    Error::new(ErrorKind::Corrupt, format!("a script answered {kind} where it should not"))
        .with_hint("check that no other program or version of punctual uses this key prefix")
}
