//! How values are written in JSON: durations as milliseconds, bytes as text, large random numbers as hexadecimal digits.
//!
//! Each module is for `#[serde(with = "…")]`.

/// Durations as whole milliseconds, rounded up.
pub(crate) mod ms {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::core::time::ceil_ms;

    pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(ceil_ms(*d))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }
}

/// As [`ms`], of optional durations.
pub(crate) mod opt_ms {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::core::time::ceil_ms;

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(crate) fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        d.map(ceil_ms).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(d)?.map(Duration::from_millis))
    }
}

/// Bytes as a string if they are UTF-8, else as an array of numbers.
pub(crate) mod bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Bytes {
        Text(String),
        Numbers(Vec<u8>),
    }

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(bytes) {
            Ok(text) => s.serialize_str(text),
            Err(_) => bytes.serialize(s),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        Ok(match Bytes::deserialize(d)? {
            Bytes::Text(text) => text.into_bytes(),
            Bytes::Numbers(bytes) => bytes,
        })
    }
}

/// Optional numbers of 128 bits as up to 32 hexadecimal digits, since many readers of JSON round large numbers.
pub(crate) mod opt_hex {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(crate) fn serialize<S: Serializer>(n: &Option<u128>, s: S) -> Result<S::Ok, S::Error> {
        n.map(|n| format!("{n:032x}")).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u128>, D::Error> {
        let Some(text) = Option::<String>::deserialize(d)? else { return Ok(None) };
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        number.map(Some).ok_or_else(|| D::Error::custom("1 to 32 hexadecimal digits were expected"))
    }
}

/// As [`opt_hex`], of a number that is there.
pub(crate) mod hex {
    use serde::{Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(n: &u128, s: S) -> Result<S::Ok, S::Error> {
        super::opt_hex::serialize(&Some(*n), s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u128, D::Error> {
        super::opt_hex::deserialize(d)?.ok_or_else(|| D::Error::custom("a number is missing"))
    }
}
