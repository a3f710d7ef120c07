//! Patterns: texts in which `*` stands for any number of characters.

/// The parts between the stars; one part if there is no star.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    parts: Vec<String>,
}

impl Pattern {
    pub(super) fn new(parts: Vec<String>) -> Self {
        debug_assert!(!parts.is_empty(), "a text without a star is one part");
        Self { parts }
    }

    pub(super) fn literal(text: impl Into<String>) -> Self {
        Self { parts: vec![text.into()] }
    }

    /// Returns the one text that it matches; `None` if it matches more.
    pub(super) fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [text] => Some(text),
            _ => None,
        }
    }

    /// Returns how many bytes a comparison with the text can read. A text without a star is compared only with one of its
    /// own length.
    pub(super) fn steps(&self, text: &str) -> u64 {
        match self.parts.as_slice() {
            [only] => 1 + only.len() as u64,
            _ => 1 + text.len() as u64,
        }
    }

    /// Returns whether a star is in it.
    pub(super) fn has_star(&self) -> bool {
        1 < self.parts.len()
    }

    /// Returns whether the text matches, in at worst |pattern| × |text| steps. Parts are searched from left to right,
    /// each once.
    pub(super) fn matches(&self, text: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return self.parts.iter().all(|only| only == text);
        };
        let Some(mut rest) = text.strip_prefix(first.as_str()) else { return false };
        for part in middle {
            let Some(at) = rest.find(part.as_str()) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        let matches =
            |pattern: &str, text| Pattern::new(pattern.split('*').map(str::to_owned).collect()).matches(text);
        for (pattern, text) in [
            ("a", "a"),
            ("*", ""),
            ("email.*", "email.send"),
            ("*.send", "email.send"),
            ("a*b*c", "abc"),
            ("a*b*c", "a-b-b-c"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("a", "ab"), ("", "a"), ("ab*ba", "aba"), ("a*b*c", "acb"), ("*x", ""), ("a*", "b")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
