//! Parses the text of a filter. Bounded in bytes and terms. Each error says where the problem is and what to write.

use super::{Term, Test, fields::FIELDS};
use crate::core::{
    error::{Error, Result},
    limits::{FILTER_BYTES_MAX, FILTER_STARS_MAX, FILTER_TERMS_MAX},
    suggest::did_you_mean,
};

pub(super) fn terms(text: &str) -> Result<Vec<Term>> {
    if FILTER_BYTES_MAX < text.len() {
        let n = text.len();
        return Err(Error::invalid(format!("a filter of {n} bytes is over the limit of {FILTER_BYTES_MAX}")));
    }
    let (mut terms, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        if terms.len() == FILTER_TERMS_MAX {
            return Err(Error::invalid(format!("a filter may have {FILTER_TERMS_MAX} terms at most")));
        }
        let (term, after) = term(rest)?;
        terms.push(term);
        rest = after.trim_start();
    }
    let stars =
        terms.iter().flat_map(|term| term.test.patterns()).filter(|pattern| pattern.has_star()).count();
    if FILTER_STARS_MAX < stars {
        return Err(Error::invalid(format!("a filter may have {FILTER_STARS_MAX} values with * at most"))
            .with_hint("write fewer of them, or several filters"));
    }
    Ok(terms)
}

/// Parses one term; returns it and the rest of the text.
fn term(text: &str) -> Result<(Term, &str)> {
    let whole = text;
    let (negated, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let end = text.find(|c: char| c == ':' || c == '"' || c.is_whitespace()).unwrap_or(text.len());
    let (field, rest) = text.split_at(end);
    let Some(mut rest) = rest.strip_prefix(':') else {
        return Err(Error::invalid(format!("{:?} is not a term of a filter", shown(field)))
            .with_hint("write field:value, as in queue:mail state:dead"));
    };
    let mut values = Vec::new();
    loop {
        let (value, after) = Value::read(field, rest)?;
        values.push(value);
        let Some(next) = after.strip_prefix(',') else {
            let text = whole[..whole.len() - after.len()].to_owned();
            return Ok((Term { text, negated, test: test(field, values)? }, after));
        };
        rest = next;
    }
}

/// Makes a test from the values of a field.
fn test(field: &str, values: Vec<Value>) -> Result<Test> {
    let name = if field.starts_with("payload.") { "payload" } else { field };
    if let Some(known) = FIELDS.iter().find(|known| known.name == name) {
        return (known.read)(field, values);
    }
    let names = FIELDS.map(|known| known.name);
    Err(Error::invalid(format!("unknown field `{}` in filter", shown(field))).with_hint(
        match did_you_mean(field, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the fields are {}", names.join(", ")),
        },
    ))
}

/// One value of a term.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The parts between the stars outside quotes.
    pub(super) parts: Vec<String>,
    /// Whether it begins with a quote.
    pub(super) quoted: bool,
}

impl Value {
    /// Reads up to the next comma or space.
    fn read<'a>(field: &str, text: &'a str) -> Result<(Self, &'a str)> {
        let (mut part, mut parts) = (String::new(), Vec::new());
        let mut chars = text.char_indices();
        let mut quoted = false;
        let end = loop {
            match chars.next() {
                None => break text.len(),
                Some((at, c)) if c == ',' || c.is_whitespace() => break at,
                Some((_, '*')) => parts.push(std::mem::take(&mut part)),
                Some((at, '"')) => {
                    quoted |= at == 0;
                    loop {
                        match chars.next() {
                            Some((_, '"')) => break,
                            Some((_, '\\')) => part.extend(chars.next().map(|(_, c)| c)),
                            Some((_, c)) => part.push(c),
                            None => {
                                return Err(Error::invalid(format!(
                                    "a quote after {}: is not closed",
                                    shown(field)
                                )));
                            }
                        }
                    }
                }
                Some((_, c)) => part.push(c),
            }
        };
        if end == 0 {
            return Err(Error::invalid(format!("a value is missing after {}:", shown(field)))
                .with_hint("write field:value without a space; \"\" is the empty text"));
        }
        parts.push(part);
        Ok((Self { parts, quoted }, &text[end..]))
    }

    /// Returns the value as one text, for fields without stars.
    pub(super) fn text(&self) -> String {
        self.parts.join("*")
    }
}

/// Writes a text as a quoted value.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the beginning of the user's text, short enough for an error.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}
