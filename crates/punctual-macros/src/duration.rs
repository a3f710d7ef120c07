//! Parses durations in attributes, in the form of `punctual::job::parse_duration`.

/// Units, longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses whole numbers with units, the longest unit first, to milliseconds: `250ms`, `5s`, `1h30m`, `2d`.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    let (mut rest, mut units, mut total) = (text.trim(), &UNITS[..], None);
    while !rest.is_empty() {
        let (digits, unit_on) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, after) =
            unit_on.split_at(unit_on.find(|c: char| c.is_ascii_digit()).unwrap_or(unit_on.len()));
        let place = units.iter().position(|(name, _)| *name == unit)?;
        let ms = digits.parse::<u64>().ok()?.checked_mul(units[place].1)?;
        total = Some(total.unwrap_or(0_u64).checked_add(ms)?);
        (rest, units) = (after, &units[place + 1..]);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_with_units_in_order() {
        assert_eq!(milliseconds("250ms"), Some(250));
        assert_eq!(milliseconds(" 2d "), Some(172_800_000));
        assert_eq!(milliseconds("1h30m"), Some(5_400_000));
        for wrong in ["", "5", "s", "-1s", "1.5s", "30m1h", "1h1h", "99999999999999999999s", "5 s", "5sec"] {
            assert_eq!(milliseconds(wrong), None, "{wrong}");
        }
    }
}
