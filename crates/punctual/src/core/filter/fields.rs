//! The table of a filter's fields: names, values, and how each is read.

use std::str::FromStr;

use super::{
    Compare, IdPart, Instant, Name, StateWord, Test,
    parse::{Value, shown},
    pattern::Pattern,
};
use crate::core::{
    duration::parse_duration,
    error::{Error, Result},
    id::JobId,
    job::{Priority, State, Status},
    limits::FILTER_STEPS_MAX,
    suggest::did_you_mean,
};

/// A field of a filter, which stands before the colon.
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes.
    pub takes: Takes,
    /// The jobs that match a value.
    pub matches: &'static str,
    /// Terms with it.
    pub examples: &'static [&'static str],
    /// Makes a test from the text before the colon, and the values after it.
    pub(super) read: fn(&str, Vec<Value>) -> Result<Test>,
}

/// A kind of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Takes {
    /// A word of [`states`].
    State,
    /// A name, in which `*` stands for any text.
    Name,
    /// An id, or a part of one.
    Id,
    /// A priority.
    Priority,
    /// A number, after a sign of [`signs`] or alone.
    Number,
    /// A sign of [`signs`] and a time from now.
    Ahead,
    /// A sign of [`signs`] and a time ago.
    Ago,
    /// Part of a text.
    Text,
    /// A value in a JSON payload.
    Json,
}

/// Every field, in the order in which errors and pages list them.
pub const FIELDS: [Field; 17] = [
    Field {
        name: "state",
        takes: Takes::State,
        matches: "The job is in this state.",
        examples: &["state:dead", "state:dead,retrying"],
        read: |_, values| Ok(Test::State(all(&values, state)?)),
    },
    Field {
        name: "queue",
        takes: Takes::Name,
        matches: "The job is in this queue.",
        examples: &["queue:mail", "queue:mail,bulk"],
        read: |field, values| name(Name::Queue, field, values),
    },
    Field {
        name: "kind",
        takes: Takes::Name,
        matches: "The job has this kind.",
        examples: &["kind:email.send", "kind:email.*"],
        read: |field, values| name(Name::Kind, field, values),
    },
    Field {
        name: "tag",
        takes: Takes::Name,
        matches: "The job has this tag.",
        examples: &["tag:vip", "tag:\"summer sale\""],
        read: |field, values| name(Name::Tag, field, values),
    },
    Field {
        name: "group",
        takes: Takes::Name,
        matches: "The job is in this group.",
        examples: &["group:acme"],
        read: |field, values| name(Name::Group, field, values),
    },
    Field {
        name: "concurrency",
        takes: Takes::Name,
        matches: "The job has this concurrency key.",
        examples: &["concurrency:row:42"],
        read: |field, values| name(Name::Concurrency, field, values),
    },
    Field {
        name: "unique",
        takes: Takes::Name,
        matches: "The job has this unique key.",
        examples: &["unique:welcome:42", "unique:welcome:*"],
        read: |field, values| name(Name::Unique, field, values),
    },
    Field {
        name: "worker",
        takes: Takes::Name,
        matches: "This worker runs the job, or ran one of its kept failed attempts.",
        examples: &["worker:web-1/4711", "worker:web-1/*"],
        read: |field, values| name(Name::Worker, field, values),
    },
    Field {
        name: "id",
        takes: Takes::Id,
        matches: "The id of the job is this one, or begins or ends with it.",
        examples: &["id:5c1e9f04"],
        read: |_, values| Ok(Test::Id(all(&values, id)?)),
    },
    Field {
        name: "priority",
        takes: Takes::Priority,
        matches: "The job has this priority.",
        examples: &["priority:high", "priority:0,1"],
        read: |_, values| Ok(Test::Priority(all(&values, |value| value.text().parse::<Priority>())?)),
    },
    Field {
        name: "attempt",
        takes: Takes::Number,
        matches: "This is the number of the current or next attempt; of an ended job, of its last.",
        examples: &["attempt:3", "attempt:>3", "attempt:1,>=5"],
        read: |_, values| Ok(Test::Attempt(all(&values, attempt)?)),
    },
    Field {
        name: "due",
        takes: Takes::Ahead,
        matches: "The job waits, and is due in this time. A negative time is overdue.",
        examples: &["due:<10m", "due:>2h", "due:<-5m"],
        read: |field, values| time(Instant::Due, field, &values),
    },
    Field {
        name: "created",
        takes: Takes::Ago,
        matches: "The job was enqueued this long ago.",
        examples: &["created:<1h", "created:>7d"],
        read: |field, values| time(Instant::Created, field, &values),
    },
    Field {
        name: "failed",
        takes: Takes::Ago,
        matches: "The last failed attempt ended this long ago.",
        examples: &["failed:<15m", "failed:>2h"],
        read: |field, values| time(Instant::Failed, field, &values),
    },
    Field {
        name: "finished",
        takes: Takes::Ago,
        matches: "The job ended this long ago: done, dead or cancelled.",
        examples: &["finished:<1h30m"],
        read: |field, values| time(Instant::Finished, field, &values),
    },
    Field {
        name: "error",
        takes: Takes::Text,
        matches: "The last error contains this text.",
        examples: &["error:timeout", "error:\"421 try later\""],
        read: |_, values| Ok(Test::Error(values.iter().map(Value::text).collect())),
    },
    Field {
        name: "payload",
        takes: Takes::Json,
        matches: "The JSON payload has this value at this path.",
        examples: &["payload.user.id:42", "payload.to.0:*@example.com", "payload.trial:true"],
        read: payload,
    },
];

/// Every value of `state:`, in the order of a job's life, and what it means.
pub(super) const STATES: [(&str, StateWord, &str); 9] = [
    (
        "waiting",
        StateWord::Stored(State::Waiting),
        "The job waits: it is `scheduled`, `blocked`, `ready` or `retrying`.",
    ),
    ("scheduled", StateWord::Shown(Status::Scheduled), "The job is due later."),
    ("blocked", StateWord::Shown(Status::Blocked), "The job is due, but a limit holds it back."),
    ("ready", StateWord::Shown(Status::Ready), "The job is due, and starts when a worker has a free slot."),
    ("retrying", StateWord::Shown(Status::Retrying), "The job failed, and waits for its next attempt."),
    ("running", StateWord::Stored(State::Running), "A worker runs the job."),
    ("done", StateWord::Stored(State::Done), "The job ended with success."),
    ("dead", StateWord::Stored(State::Dead), "The job failed, and is not tried again."),
    ("cancelled", StateWord::Stored(State::Cancelled), "The job was cancelled."),
];

/// Every sign of a comparison; a sign that begins with another one is before it.
pub(super) const SIGNS: [(&str, Compare, &str); 4] = [
    ("<=", Compare::AtMost, "at most"),
    (">=", Compare::AtLeast, "at least"),
    ("<", Compare::Less, "less than"),
    (">", Compare::More, "more than"),
];

/// Returns every value of `state:`, and what it means.
pub fn states() -> impl Iterator<Item = (&'static str, &'static str)> {
    STATES.into_iter().map(|(name, _, meaning)| (name, meaning))
}

/// Returns every sign of a comparison, and what it means.
pub fn signs() -> impl Iterator<Item = (&'static str, &'static str)> {
    SIGNS.into_iter().map(|(sign, _, meaning)| (sign, meaning))
}

fn name(name: Name, field: &str, values: Vec<Value>) -> Result<Test> {
    Ok(Test::Name(name, patterns(field, values)?))
}

fn time(instant: Instant, field: &str, values: &[Value]) -> Result<Test> {
    Ok(Test::Time(instant, all(values, |value| age(field, instant, value))?))
}

fn payload(field: &str, values: Vec<Value>) -> Result<Test> {
    let Some(path) = field.strip_prefix("payload.") else {
        return Err(Error::invalid("payload needs a path").with_hint("write payload.user.id:42"));
    };
    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
    if path.iter().any(String::is_empty) || FILTER_STEPS_MAX < path.len() {
        return Err(Error::invalid(format!("{:?} is not a path into a payload", shown(field)))
            .with_hint(format!("write payload.user.id:42, with {FILTER_STEPS_MAX} steps at most")));
    }
    Ok(Test::Payload(path, patterns(field, values)?))
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
    STATES.iter().find(|(name, ..)| *name == text).map(|(_, word, _)| *word).ok_or_else(|| {
        let names = STATES.map(|(name, ..)| name);
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
    let found = SIGNS.into_iter().find_map(|(sign, compare, _)| Some((compare, text.strip_prefix(sign)?)));
    found.map_or((None, text), |(compare, rest)| (Some(compare), rest))
}
