//! What errors have in common.

/// Quotes whose content is replaced.
const QUOTES: [char; 3] = ['"', '\'', '`'];
/// The least digits of a hexadecimal number that is replaced as one.
const HEX_MIN: usize = 8;

/// The part of an error that is the same each time it occurs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fingerprint {
    /// The text with what differs replaced.
    pub(crate) text: String,
    /// The longest part that was not replaced. Each error of this fingerprint contains it.
    pub(crate) literal: String,
}

impl Fingerprint {
    /// Makes the fingerprint of the first line of an error.
    ///
    /// The rule: text in quotes becomes `…`, whether the quotes are `"`, `'` or a backquote. A word that is a UUID, or a hexadecimal number of at least
    /// eight digits, becomes `#`. So does each other run of decimal digits. All else stays as it is. An apostrophe after
    /// a letter begins no quote.
    pub(super) fn of(error: &str) -> Self {
        let line = error.lines().next().unwrap_or_default();
        let (mut text, mut literal, mut run) = (String::new(), String::new(), String::new());
        let mut end = |run: &mut String| {
            if literal.len() < run.trim().len() {
                run.trim().clone_into(&mut literal);
            }
            run.clear();
        };
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let (taken, replaced) = piece(rest, c, text.chars().next_back());
            if let Some(by) = replaced {
                end(&mut run);
                text.push_str(by);
            } else {
                text.push_str(&rest[..taken]);
                run.push_str(&rest[..taken]);
            }
            rest = &rest[taken..];
        }
        end(&mut run);
        Self { text, literal }
    }
}

/// Returns the length of the next piece, and what it is replaced by.
fn piece(rest: &str, c: char, before: Option<char>) -> (usize, Option<&'static str>) {
    if QUOTES.contains(&c) && !before.is_some_and(char::is_alphanumeric) {
        return match rest[c.len_utf8()..].find(c) {
            Some(length) => (length + 2 * c.len_utf8(), Some("…")),
            None => (c.len_utf8(), None),
        };
    }
    if c.is_ascii_alphanumeric() && !before.is_some_and(|before| before.is_ascii_alphanumeric()) {
        let word = &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len())];
        let digits = word.trim_end_matches('-').strip_prefix("0x").unwrap_or(word);
        let has_digit = digits.bytes().any(|b| b.is_ascii_digit());
        let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        if has_digit && is_hex && HEX_MIN <= digits.len() {
            return (word.len(), Some("#"));
        }
    }
    if c.is_ascii_digit() {
        return (rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()), Some("#"));
    }
    (c.len_utf8(), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_replaced() {
        for (error, text, literal) in [
            ("421 try later", "# try later", "try later"),
            ("timeout after 5.03s", "timeout after #.#s", "timeout after"),
            ("no user \"ana\" in 'de'\nat line 7", "no user … in …", "no user"),
            ("can't open 5c1e9f04", "can't open #", "can't open"),
            ("job 0193b3a4-7c1e-7000-8000-00000000002a gone", "job # gone", "gone"),
            ("deadbeef cafe", "deadbeef cafe", "deadbeef cafe"),
            ("open \"quote", "open \"quote", "open \"quote"),
            ("", "", ""),
        ] {
            let fingerprint = Fingerprint::of(error);
            assert_eq!((fingerprint.text.as_str(), fingerprint.literal.as_str()), (text, literal));
        }
    }
}
