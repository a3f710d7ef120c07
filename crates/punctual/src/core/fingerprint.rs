//! What errors have in common: the same text for errors that differ only in numbers, ids and quoted parts.
//!
//! Recent activity counts errors by it, and the pages of failures group jobs by it.

use crate::core::limits::NAME_BYTES_MAX;

/// The bytes of a line that are looked at.
const READ_MAX: usize = 1_024;
/// The least digits of a hexadecimal number without `0x` that is replaced as one.
const HEX_MIN: usize = 8;
/// The least characters of a word with several numbers in it that is replaced as an id.
const ID_MIN: usize = 6;
/// Opening quotes and their closing ones. What is between them is replaced.
const QUOTES: [(char, char); 6] = [('"', '"'), ('\'', '\''), ('`', '`'), ('“', '”'), ('‘', '’'), ('«', '»')];
/// Stands for a number or an id.
const NUMBER: &str = "#";
/// Stands for a quoted part.
const QUOTED: &str = "…";

/// The part of an error that is the same each time it occurs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Fingerprint {
    /// The text with what differs replaced, up to 255 bytes. `(no words)` for an error without any.
    pub text: String,
    /// The longest part that was not replaced. Each error of this fingerprint contains it.
    pub literal: String,
}

impl Fingerprint {
    /// Makes the fingerprint of an error, by its first line that is not blank.
    ///
    /// It reads up to 1,024 bytes of the line. A quoted part becomes `…`. A number, a UUID, a hexadecimal number of at
    /// least eight digits or with `0x`, and a word of at least six letters and digits with two numbers in it become `#`.
    /// A number can have parts: `1,034.5`, `10.0.0.1` and `12:30` are one each. Of a list of them, one is left. An
    /// apostrophe after a letter begins no quote.
    ///
    /// ```
    /// use punctual::job::Fingerprint;
    ///
    /// let error = Fingerprint::of("no answer from 10.0.0.7:5432 after 1,034 ms (user \"ana\")");
    /// assert_eq!(error.text, "no answer from # after # ms (user …)");
    /// assert_eq!(error.literal, "no answer from");
    /// ```
    pub fn of(error: &str) -> Self {
        let line = error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let line = &line[..line.floor_char_boundary(READ_MAX)];
        let (mut text, mut literal, mut run) = (String::new(), String::new(), String::new());
        let mut end = |run: &mut String| {
            if literal.len() < run.trim().len() {
                run.trim().clone_into(&mut literal);
            }
            run.clear();
        };
        let (mut rest, mut before) = (line, None);
        while let Some(c) = rest.chars().next() {
            let (taken, replaced) = piece(rest, c, before);
            let own = if c.is_control() { " " } else { &rest[..taken] };
            let shown = replaced.unwrap_or(own);
            if NAME_BYTES_MAX < text.len() + shown.len() {
                break;
            }
            if let Some(by) = replaced {
                end(&mut run);
                push_replaced(&mut text, by);
            } else {
                text.push_str(own);
                // The errors contain the control character, not what is shown for it.
                if c.is_control() { end(&mut run) } else { run.push_str(own) }
            }
            before = rest[..taken].chars().next_back();
            rest = &rest[taken..];
        }
        end(&mut run);
        if text.is_empty() {
            text.push_str("(no words)");
        }
        Self { text, literal }
    }
}

/// Adds what stands for a part. Of a list of such parts, one is left.
fn push_replaced(text: &mut String, by: &str) {
    let list = text.trim_end_matches([' ', ',']);
    if list.len() < text.len() && list.ends_with(by) {
        text.truncate(list.len());
    } else {
        text.push_str(by);
    }
}

/// Returns the length of the next piece, and what it is replaced by.
fn piece(rest: &str, c: char, before: Option<char>) -> (usize, Option<&'static str>) {
    let is_within_word = before.is_some_and(char::is_alphanumeric);
    if let Some((open, close)) = QUOTES.iter().find(|(open, _)| *open == c)
        && !is_within_word
    {
        return match rest[open.len_utf8()..].find(*close) {
            Some(length) => (open.len_utf8() + length + close.len_utf8(), Some(QUOTED)),
            None => (open.len_utf8(), None),
        };
    }
    if c.is_ascii_alphanumeric() && !is_within_word {
        let length = |of: fn(u8) -> bool| rest.bytes().position(|b| !of(b)).unwrap_or(rest.len());
        let word = &rest[..length(|b| b.is_ascii_alphanumeric() || b == b'-')];
        let plain = &rest[..length(|b| b.is_ascii_alphanumeric())];
        if is_hex(word) {
            return (word.len(), Some(NUMBER));
        }
        if is_hex(plain) || is_id(plain) {
            return (plain.len(), Some(NUMBER));
        }
    }
    if c.is_ascii_digit() {
        return (number(rest.as_bytes()), Some(NUMBER));
    }
    (c.len_utf8(), None)
}

fn is_hex(word: &str) -> bool {
    let (digits, least) = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => (digits, 1),
        None => (word, HEX_MIN),
    };
    let is_marked = least == 1;
    least <= digits.len()
        && digits.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-' && !is_marked)
        && (is_marked || digits.bytes().any(|b| b.is_ascii_digit()))
}

/// Returns whether a word has letters, and numbers in two places.
fn is_id(word: &str) -> bool {
    let numbers = word.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()).count();
    ID_MIN <= word.len() && 2 <= numbers
}

/// Returns the length of a number: digits, and parts that one of `.,:` joins.
fn number(bytes: &[u8]) -> usize {
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while is_digit(at) || bytes.get(at).is_some_and(|b| b".,:".contains(b)) && is_digit(at + 1) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_replaced() {
        for (error, text, literal) in [
            ("421 try later", "# try later", "try later"),
            ("timeout after 5.03s", "timeout after #s", "timeout after"),
            ("took 1,034 ms at 12:30:05", "took # ms at #", "ms at"),
            ("connect 10.0.0.1:5432: refused", "connect #: refused", ": refused"),
            ("no user \"ana\" in 'de'\nat line 7", "no user … in …", "no user"),
            ("no user “ana” in «de»", "no user … in …", "no user"),
            ("can't open 5c1e9f04", "can't open #", "can't open"),
            ("can't open 5c1e9f0, 0x1f", "can't open #", "can't open"),
            ("job 0193b3a4-7c1e-7000-8000-00000000002a gone", "job # gone", "gone"),
            ("order-01HZY3W8Q4K5 gone", "order-# gone", "order-"),
            ("missing 1, 2, 3 and 4", "missing # and #", "missing"),
            ("2026-11-29T12:00:00Z down", "#-#-#T#Z down", "Z down"),
            ("sha256 of file2 is wrong", "sha# of file# is wrong", "is wrong"),
            ("deadbeef cafe", "deadbeef cafe", "deadbeef cafe"),
            ("open \"quote", "open \"quote", "open \"quote"),
            ("\n  smtp\ttry\0later \n behind it", "smtp try later", "later"),
            ("", "(no words)", ""),
            (" \n ", "(no words)", ""),
        ] {
            let fingerprint = Fingerprint::of(error);
            assert_eq!(
                (fingerprint.text.as_str(), fingerprint.literal.as_str()),
                (text, literal),
                "{error:?}"
            );
            assert!(error.contains(&fingerprint.literal), "{error:?}");
        }
    }

    #[test]
    fn errors_that_differ_in_a_number_are_one() {
        let of = |error: String| Fingerprint::of(&error).text;
        let all: std::collections::BTreeSet<_> = (0..2_000)
            .map(|i| of(format!("row {i}: no answer after {}.{} s (id {:08x})", i / 7, i % 7, i * 97_001)))
            .collect();
        assert_eq!(Vec::from_iter(all), ["row #: no answer after # s (id #)"]);
    }

    /// Whatever an error contains, its fingerprint is a name that stores take, and is made soon.
    #[test]
    fn it_is_bounded() {
        for error in [
            "ä".repeat(5_000),
            "a-".repeat(5_000),
            "\"'`".repeat(5_000),
            "1x".repeat(5_000),
            "a\u{1}".repeat(900),
        ] {
            let fingerprint = Fingerprint::of(&error);
            assert!((1..=NAME_BYTES_MAX).contains(&fingerprint.text.len()), "{fingerprint:?}");
            assert!(!fingerprint.text.contains(char::is_control) && error.contains(&fingerprint.literal));
        }
        assert_eq!(Fingerprint::of(&"ä".repeat(300)).text, "ä".repeat(127));
    }
}
