//! Parses and checks `#[job(…)]`. The limits are those of `punctual::limits`.

use proc_macro2::Ident;
use syn::{DeriveInput, Error, LitInt, LitStr, Result, meta::ParseNestedMeta};

use crate::duration::milliseconds;

/// Every attribute, in the order of the docs.
const NAMES: [&str; 8] =
    ["kind", "queue", "max_attempts", "backoff", "timeout", "lease", "priority", "unique"];

const NAME_BYTES_MAX: usize = 255;
const MAX_ATTEMPTS_MAX: u32 = 10_000;
const TIMEOUT_MAX_MS: u64 = 7 * 86_400_000;
const LEASE_MS: std::ops::RangeInclusive<u64> = 1_000..=86_400_000;
const BACKOFF_MAX_MS: u64 = 30 * 86_400_000;
/// The longest pause of a backoff that names none.
const BACKOFF_CAP_MS: u64 = 6 * 3_600_000;

pub(crate) struct Attributes {
    pub(crate) kind: LitStr,
    pub(crate) queue: Option<LitStr>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) backoff: Option<Backoff>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) lease_ms: Option<u64>,
    /// A variant of `punctual::Priority`.
    pub(crate) priority: Option<Ident>,
    /// The name of a method.
    pub(crate) unique: Option<Ident>,
}

pub(crate) struct Backoff {
    /// A constructor of `punctual::Backoff`.
    pub(crate) growth: Ident,
    pub(crate) base_ms: u64,
    pub(crate) max_ms: Option<u64>,
    /// Where it is given.
    pub(crate) jitter: Option<bool>,
}

impl Attributes {
    pub(crate) fn read(input: &DeriveInput) -> Result<Self> {
        let (mut kind, mut seen) = (None, Vec::new());
        let mut rest = Rest::default();
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("job")) {
            attribute.parse_nested_meta(|meta| {
                let name = meta.path.get_ident().map(Ident::to_string).unwrap_or_default();
                if seen.contains(&name) {
                    return Err(meta.error(format!("`{name}` is set twice")));
                }
                match name.as_str() {
                    "kind" => kind = Some(text(&meta, |kind| check_name("kind", kind))?),
                    "queue" => rest.queue = Some(text(&meta, check_queue)?),
                    "max_attempts" => rest.max_attempts = Some(max_attempts(&meta)?),
                    "backoff" => rest.backoff = Some(backoff(&meta)?),
                    "timeout" => rest.timeout_ms = Some(timeout(&meta)?),
                    "lease" => rest.lease_ms = Some(lease(&meta)?),
                    "priority" => rest.priority = Some(priority(&meta)?),
                    "unique" => rest.unique = Some(method(&meta)?),
                    _ => return Err(meta.error(unknown(&name))),
                }
                seen.push(name);
                Ok(())
            })?;
        }
        let kind = kind.ok_or_else(|| {
            Error::new_spanned(
                &input.ident,
                "a job needs a kind, its name on the wire: add `#[job(kind = \"…\")]`",
            )
        })?;
        let Rest { queue, max_attempts, backoff, timeout_ms, lease_ms, priority, unique } = rest;
        Ok(Self { kind, queue, max_attempts, backoff, timeout_ms, lease_ms, priority, unique })
    }
}

/// The optional attributes.
#[derive(Default)]
struct Rest {
    queue: Option<LitStr>,
    max_attempts: Option<u32>,
    backoff: Option<Backoff>,
    timeout_ms: Option<u64>,
    lease_ms: Option<u64>,
    priority: Option<Ident>,
    unique: Option<Ident>,
}

/// Parses a text that must pass `check`; an error is reported at the literal.
fn text(
    meta: &ParseNestedMeta<'_>,
    check: impl FnOnce(&str) -> std::result::Result<(), String>,
) -> Result<LitStr> {
    let literal: LitStr = meta.value()?.parse()?;
    check(&literal.value()).map_err(|wrong| Error::new(literal.span(), wrong))?;
    Ok(literal)
}

fn check_name(what: &str, name: &str) -> std::result::Result<(), String> {
    if name.is_empty() {
        Err(format!("{what} is empty"))
    } else if NAME_BYTES_MAX < name.len() {
        Err(format!("{what} of {} bytes is over the limit of {NAME_BYTES_MAX}", name.len()))
    } else if name.contains('\0') {
        Err(format!("{what} contains NUL"))
    } else {
        Ok(())
    }
}

fn check_queue(name: &str) -> std::result::Result<(), String> {
    check_name("queue", name)?;
    if name.chars().any(char::is_control) {
        Err("queue contains a control character".to_owned())
    } else if name.starts_with('$') {
        Err("queue names that start with $ are punctual's own".to_owned())
    } else {
        Ok(())
    }
}

fn max_attempts(meta: &ParseNestedMeta<'_>) -> Result<u32> {
    let literal: LitInt = meta.value()?.parse()?;
    literal.base10_parse().ok().filter(|n| (1..=MAX_ATTEMPTS_MAX).contains(n)).ok_or_else(|| {
        Error::new(literal.span(), format!("max_attempts is a number from 1 to {MAX_ATTEMPTS_MAX}"))
    })
}

/// Parses a duration: its literal, and its milliseconds.
fn duration(meta: &ParseNestedMeta<'_>) -> Result<(LitStr, u64)> {
    let literal: LitStr = meta.value()?.parse()?;
    let ms = milliseconds(&literal.value()).ok_or_else(|| {
        Error::new(literal.span(), "not a duration: write `500ms`, `90s`, `10m`, `1h30m` or `2d`")
    })?;
    Ok((literal, ms))
}

fn timeout(meta: &ParseNestedMeta<'_>) -> Result<u64> {
    match duration(meta)? {
        (_, ms) if (1..=TIMEOUT_MAX_MS).contains(&ms) => Ok(ms),
        (literal, _) => Err(Error::new(literal.span(), "timeout is not within 1ms to 7d")),
    }
}

fn lease(meta: &ParseNestedMeta<'_>) -> Result<u64> {
    match duration(meta)? {
        (_, ms) if LEASE_MS.contains(&ms) => Ok(ms),
        (literal, _) => Err(Error::new(literal.span(), "lease is not within 1s to 24h")),
    }
}

fn backoff(meta: &ParseNestedMeta<'_>) -> Result<Backoff> {
    let literal: LitStr = meta.value()?.parse()?;
    let value = literal.value();
    let wrong = |text: &str| Error::new(literal.span(), text);
    let form = || wrong("not a backoff: write `exp 5s..6h`, `linear 10s..1h` or `fixed 30s`");
    let (text, jitter) = match value.trim() {
        text if text.ends_with(" without jitter") => (text.trim_end_matches(" without jitter"), Some(false)),
        text if text.ends_with(" with jitter") => (text.trim_end_matches(" with jitter"), Some(true)),
        text => (text, None),
    };
    let (growth, range) = text.trim().split_once(' ').ok_or_else(form)?;
    let growth = match growth {
        "fixed" => "fixed",
        "linear" | "lin" => "linear",
        "exponential" | "exp" => "exponential",
        _ => return Err(form()),
    };
    let (base, max) = range.split_once("..").map_or((range, None), |(base, max)| (base, Some(max)));
    let base_ms = milliseconds(base).ok_or_else(form)?;
    let max_ms = match max {
        Some(max) => Some(milliseconds(max).ok_or_else(form)?),
        // A base above the default bound is its own bound.
        None => (BACKOFF_CAP_MS < base_ms).then_some(base_ms),
    };
    if max_ms.is_some_and(|max_ms| max_ms < base_ms) {
        Err(wrong("the longest pause is shorter than the first one"))
    } else if BACKOFF_MAX_MS < max_ms.unwrap_or(base_ms) {
        Err(wrong("a pause is over the limit of 30 days"))
    } else {
        Ok(Backoff { growth: Ident::new(growth, literal.span()), base_ms, max_ms, jitter })
    }
}

fn priority(meta: &ParseNestedMeta<'_>) -> Result<Ident> {
    let literal: LitStr = meta.value()?.parse()?;
    let level = match literal.value().as_str() {
        "high" => "High",
        "normal" => "Normal",
        "low" => "Low",
        _ => return Err(Error::new(literal.span(), "priority is `high`, `normal` or `low`")),
    };
    Ok(Ident::new(level, literal.span()))
}

fn method(meta: &ParseNestedMeta<'_>) -> Result<Ident> {
    let literal: LitStr = meta.value()?.parse()?;
    literal.parse().map_err(|_| {
        Error::new(
            literal.span(),
            "unique names a method `fn(&self) -> String` of the job, as in `unique = \"key\"`",
        )
    })
}

/// Returns the error for an unknown name, with the one that was probably meant.
fn unknown(name: &str) -> String {
    let near = NAMES.iter().map(|known| (distance(name, known), known)).min();
    match near {
        Some((distance, known)) if distance <= 1 + known.len() / 4 => {
            format!("unknown attribute `{name}`: did you mean `{known}`?")
        }
        _ => format!("unknown attribute `{name}`: there are {}", NAMES.join(", ")),
    }
}

/// Returns how many letters must be added, removed or changed to turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        assert!(unknown("kinds").ends_with("did you mean `kind`?"));
        assert!(unknown("max_atempts").ends_with("did you mean `max_attempts`?"));
        assert!(unknown("colour").contains("there are kind, queue"));
    }
}
