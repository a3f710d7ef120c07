//! Parses the text of a filter. Bounded in bytes and terms. Each error says where the problem is and what to write.

use std::str::FromStr;

use super::{Compare, IdPart, Instant, Name, StateWord, Term, Test, pattern::Pattern};
use crate::core::{
    duration::parse_duration,
    error::{Error, Result},
    id::JobId,
    job::{State, Status},
    limits::{FILTER_BYTES_MAX, FILTER_STEPS_MAX, FILTER_TERMS_MAX},
    suggest::did_you_mean,
};

/// Every field, for suggestions.
const FIELDS: [&str; 17] = [
    "state",
    "queue",
    "kind",
    "tag",
    "group",
    "concurrency",
    "unique",
    "worker",
    "id",
    "priority",
    "attempt",
    "due",
    "created",
    "failed",
    "finished",
    "error",
    "payload",
];

/// Every value of `state:`, in the order of a job's life.
const STATES: [(&str, StateWord); 9] = [
    ("waiting", StateWord::Stored(State::Waiting)),
    ("scheduled", StateWord::Shown(Status::Scheduled)),
    ("blocked", StateWord::Shown(Status::Blocked)),
    ("ready", StateWord::Shown(Status::Ready)),
    ("retrying", StateWord::Shown(Status::Retrying)),
    ("running", StateWord::Stored(State::Running)),
    ("done", StateWord::Stored(State::Done)),
    ("dead", StateWord::Stored(State::Dead)),
    ("cancelled", StateWord::Stored(State::Cancelled)),
];

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
    Ok(terms)
}

/// Parses one term; returns it and the rest of the text.
fn term(text: &str) -> Result<(Term, &str)> {
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
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok((Term { negated, test: test(field, values)? }, after)),
        }
    }
}

/// Makes a test from the values of a field.
fn test(field: &str, values: Vec<Value>) -> Result<Test> {
    if let Some(path) = field.strip_prefix("payload.") {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        // Each step reads the rest of the payload again.
        if path.iter().any(String::is_empty) || FILTER_STEPS_MAX < path.len() {
            return Err(Error::invalid(format!("{:?} is not a path into a payload", shown(field)))
                .with_hint(format!("write payload.user.id:42, with {FILTER_STEPS_MAX} steps at most")));
        }
        return Ok(Test::Payload(path, patterns(field, values)?));
    }
    let name = |name| Ok(Test::Name(name, patterns(field, values.clone())?));
    let time = |instant| Ok(Test::Time(instant, all(&values, |value| age(field, instant, value))?));
    match field {
        "state" => Ok(Test::State(all(&values, state)?)),
        "kind" => name(Name::Kind),
        "queue" => name(Name::Queue),
        "tag" => name(Name::Tag),
        "group" => name(Name::Group),
        "concurrency" => name(Name::Concurrency),
        "unique" => name(Name::Unique),
        "worker" => name(Name::Worker),
        "id" => Ok(Test::Id(all(&values, id)?)),
        "priority" => Ok(Test::Priority(all(&values, |value| value.text().parse())?)),
        "attempt" => Ok(Test::Attempt(all(&values, attempt)?)),
        "due" => time(Instant::Due),
        "created" => time(Instant::Created),
        "failed" => time(Instant::Failed),
        "finished" => time(Instant::Finished),
        "error" => Ok(Test::Error(values.iter().map(Value::text).collect())),
        "payload" => Err(Error::invalid("payload needs a path").with_hint("write payload.user.id:42")),
        _ => {
            let unknown = Error::invalid(format!("unknown field `{}` in filter", shown(field)));
            Err(unknown.with_hint(match did_you_mean(field, FIELDS) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the fields are {}", FIELDS.join(", ")),
            }))
        }
    }
}

fn all<T>(values: &[Value], read: impl Fn(&Value) -> Result<T>) -> Result<Vec<T>> {
    values.iter().map(read).collect()
}

/// Parses names and texts of payloads. They have no order, so a `>` is more likely a mistake than part of a name.
fn patterns(field: &str, values: Vec<Value>) -> Result<Vec<Pattern>> {
    let mut patterns = Vec::with_capacity(values.len());
    for value in values {
        if !value.quoted && value.parts[0].starts_with(['<', '>']) {
            return Err(Error::invalid(format!("{} does not take > or <", shown(field))).with_hint(format!(
                "if the value begins with > or <, put it in quotes: {}:\"…\"",
                shown(field)
            )));
        }
        patterns.push(Pattern::new(value.parts));
    }
    Ok(patterns)
}

fn state(value: &Value) -> Result<StateWord> {
    let text = value.text();
    STATES.iter().find(|(name, _)| *name == text).map(|(_, word)| *word).ok_or_else(|| {
        let names = STATES.map(|(name, _)| name);
        Error::invalid(format!("{:?} is not a state", shown(&text))).with_hint(
            match did_you_mean(&text, names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the states are {}", names.join(", ")),
            },
        )
    })
}

fn id(value: &Value) -> Result<IdPart> {
    let text = value.text();
    if let Ok(id) = JobId::from_str(&text) {
        return Ok(IdPart::Whole(id));
    }
    let digits: String = text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
    if (6..=32).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(IdPart::Part(digits))
    } else {
        Err(Error::invalid(format!("{:?} is not a job id or a part of one", shown(&text)))
            .with_hint("write the id, or at least six digits of its beginning or end"))
    }
}

fn attempt(value: &Value) -> Result<(Compare, i64)> {
    let text = value.text();
    let (compare, number) = comparison(&text);
    let n: u32 = number.parse().map_err(|_| {
        Error::invalid(format!("{:?} is not the number of an attempt", shown(&text)))
            .with_hint("write attempt:3, attempt:>3 or attempt:<3")
    })?;
    Ok((compare.unwrap_or(Compare::Equal), i64::from(n)))
}

fn age(field: &str, instant: Instant, value: &Value) -> Result<(Compare, i64)> {
    let text = value.text();
    let wrong = || {
        Error::invalid(format!("{field}:{} is not a comparison with a time", shown(&text))).with_hint(
            match instant {
                Instant::Due => {
                    "write due:<10m (due within ten minutes), due:>2h or due:<-5m (overdue by five)".into()
                }
                _ => format!("write {field}:>2h (longer ago than two hours) or {field}:<2h"),
            },
        )
    };
    let (Some(compare), distance) = comparison(&text) else { return Err(wrong()) };
    // Only a due time can be on both sides of now.
    let (behind, distance) = match distance.strip_prefix('-') {
        Some(rest) if instant == Instant::Due => (true, rest),
        _ => (false, distance),
    };
    let distance = parse_duration(distance).map_err(|_| wrong())?;
    let ms = i64::try_from(distance.as_millis()).unwrap_or(i64::MAX);
    Ok((compare, if behind { -ms } else { ms }))
}

/// Splits a comparison sign off.
fn comparison(text: &str) -> (Option<Compare>, &str) {
    let signs =
        [("<=", Compare::AtMost), (">=", Compare::AtLeast), ("<", Compare::Less), (">", Compare::More)];
    let found = signs.into_iter().find_map(|(sign, compare)| Some((compare, text.strip_prefix(sign)?)));
    found.map_or((None, text), |(compare, rest)| (Some(compare), rest))
}

/// One value of a term.
#[derive(Clone, Debug)]
struct Value {
    /// The parts between the stars outside quotes.
    parts: Vec<String>,
    /// Whether it begins with a quote.
    quoted: bool,
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
    fn text(&self) -> String {
        self.parts.join("*")
    }
}

/// Returns the beginning of the user's text, short enough for an error.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}
