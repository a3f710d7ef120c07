//! Parses sizes as people write them, for settings of queues and the command line.

use crate::core::error::{Error, Result};

/// Units, and how often each is doubled from one byte.
pub(crate) const UNITS: [(&str, u32); 3] = [("KiB", 10), ("MiB", 20), ("GiB", 30)];

/// Parses a size in bytes: `512`, `64KiB`, `512MiB`, `2GiB`.
///
/// # Errors
/// `Invalid` for any other text, and for 2^64 bytes or more.
pub fn parse_size(text: &str) -> Result<u64> {
    let text = text.trim();
    let (digits, shift) = UNITS
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .unwrap_or((text, 0));
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        Error::invalid(format!("{:?} is not a size", text.chars().take(64).collect::<String>()))
            .with_hint("write bytes, or a number with KiB, MiB or GiB, such as 512MiB")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_multiplies_by_a_power_of_two() {
        for (text, bytes) in [
            ("0", 0),
            ("1023", 1_023),
            ("2KiB", 2_048),
            ("512MiB", 512 << 20),
            ("3GiB", 3 << 30),
            (" 1KiB ", 1_024),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "MiB", "-1", "1.5GiB", "512MB", "512 MiB", "1kib", "18446744073709551616", "17179869184GiB"]
        {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }
}
