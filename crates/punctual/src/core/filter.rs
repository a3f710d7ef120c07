//! Filters: the terms that select jobs, and whether a job matches them.
//!
//! ```text
//! state:dead,retrying queue:mail kind:email.* tag:vip attempt:>3 due:<10m failed:>2h error:"421" payload.user.id:42
//! ```
//!
//! Terms are joined by AND, the values of one term by OR. `-` in front of a term negates it. [`Filter::parse`] reads
//! the text; each `Test` documents the meaning of its term.

pub(crate) mod fields;
mod parse;
mod pattern;
mod payload;
mod search;

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use self::pattern::Pattern;
pub(crate) use self::search::Search;
use crate::core::{
    error::Result,
    id::JobId,
    job::{JobRecord, Priority, State, Status},
    time::Timestamp,
};

/// A filter for jobs: terms joined by AND. The empty filter matches every job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    terms: Vec<Term>,
}

/// A test, negated or not.
#[derive(Clone, Debug, PartialEq)]
struct Term {
    /// As it is written.
    text: String,
    negated: bool,
    test: Test,
}

/// A test on a job. One matching value is enough.
#[derive(Clone, Debug, PartialEq)]
enum Test {
    /// `state:dead,retrying`: a stored state, or a status as listings show it.
    State(Vec<StateWord>),
    /// `kind:email.*`: one of the job's names.
    Name(Name, Vec<Pattern>),
    /// `id:5c1e9f04`: an id, or the beginning or end of one.
    Id(Vec<IdPart>),
    /// `priority:high`.
    Priority(Vec<Priority>),
    /// `attempt:>3`.
    Attempt(Vec<(Compare, i64)>),
    /// `failed:>2h`: the distance of an instant from now, in milliseconds.
    Time(Instant, Vec<(Compare, i64)>),
    /// `error:"421"`: part of the last error.
    Error(Vec<String>),
    /// `payload.user.id:42`: a text, number, `true`, `false` or `null` inside a JSON payload.
    Payload(Vec<String>, Vec<Pattern>),
}

/// A value of `state:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateWord {
    Stored(State),
    /// A status that listings show for waiting jobs.
    Shown(Status),
}

/// A name that a job carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Kind,
    Queue,
    /// Any of its tags.
    Tag,
    Group,
    Concurrency,
    /// Its unique key.
    Unique,
    /// The worker that runs it, or that ran one of its kept failed attempts.
    Worker,
}

/// An instant of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instant {
    /// How far ahead a waiting job is due; negative if it is overdue.
    Due,
    /// How long ago it was enqueued.
    Created,
    /// How long ago its last kept failure was.
    Failed,
    /// How long ago it ended.
    Finished,
}

/// An id, or at least six digits of its beginning or end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum IdPart {
    Whole(JobId),
    /// Lower-case hexadecimal digits without hyphens.
    Part(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Less,
    AtMost,
    Equal,
    AtLeast,
    More,
}

impl Compare {
    fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::Equal => left == right,
            Self::AtLeast => right <= left,
            Self::More => right < left,
        }
    }
}

impl Filter {
    /// Returns the filter that matches every job.
    pub fn all() -> Self {
        Self::default()
    }

    /// Parses a filter. An empty text matches every job.
    ///
    /// The text has terms of the form `field:value`. The fields are `state`, `queue`, `kind`, `tag`, `group`,
    /// `concurrency`, `unique`, `worker`, `id`, `priority`, `attempt`, `due`, `created`, `failed`, `finished`, `error` and
    /// `payload.PATH`. In names and payload values, `*` stands for any text, except in quotes. Quotes also protect
    /// spaces, commas, `>` and `<` (write `\"` and `\\` inside them). `due:<10m` matches jobs due within ten minutes.
    /// `failed:>2h` matches jobs that failed more than two hours ago.
    ///
    /// ```
    /// let filter = punctual::job::Filter::parse(r#"state:dead kind:email.* -tag:vip error:"try later""#)?;
    /// let wrong = punctual::job::Filter::parse("kimd:email.send").unwrap_err();
    /// assert_eq!(wrong.hint(), Some("did you mean `kind`?"));
    /// # Ok::<(), punctual::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` for an unknown field or value, for more than 4 KiB of text, for more than 64 terms, and for more
    /// than 64 values with `*`.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self { terms: parse::terms(text)? })
    }

    /// Adds a term: the job is in this queue.
    #[must_use]
    pub fn queue(self, queue: impl Into<String>) -> Self {
        let queue = queue.into();
        let text = format!("queue:{}", parse::quoted(&queue));
        self.and(text, Test::Name(Name::Queue, vec![Pattern::literal(queue)]))
    }

    /// Adds a term: the job is in one of these states.
    #[must_use]
    pub fn state(self, states: impl Into<Vec<State>>) -> Self {
        let states = states.into();
        let names: Vec<&str> = states.iter().map(|state| state.name()).collect();
        self.and(
            format!("state:{}", names.join(",")),
            Test::State(states.into_iter().map(StateWord::Stored).collect()),
        )
    }

    fn and(mut self, text: String, test: Test) -> Self {
        self.terms.push(Term { text, negated: false, test });
        self
    }

    /// Returns whether `job` matches when the store's clock shows `now`.
    pub fn matches(&self, job: &JobRecord, now: Timestamp) -> bool {
        Search::new(self).matches(job, now)
    }

    /// Returns the states to which the search can be narrowed; `None` means all.
    pub fn states(&self) -> Option<Vec<State>> {
        self.narrowed(Test::states)
    }

    /// Returns the queues to which the search can be narrowed; `None` means all.
    pub fn queues(&self) -> Option<Vec<String>> {
        self.narrowed(Test::queues)
    }

    /// Returns whether a term looks into payloads.
    ///
    /// ```
    /// # use punctual::job::Filter;
    /// assert!(Filter::parse("state:dead payload.user.id:42")?.reads_payloads());
    /// assert!(!Filter::parse("kind:payload.email")?.reads_payloads());
    /// # Ok::<(), punctual::Error>(())
    /// ```
    pub fn reads_payloads(&self) -> bool {
        self.terms.iter().any(|term| matches!(term.test, Test::Payload(..)))
    }

    /// Returns the values that all terms with a finite set have in common. Negated terms have no such set.
    fn narrowed<T: PartialEq>(&self, set: impl Fn(&Test) -> Option<Vec<T>>) -> Option<Vec<T>> {
        let sets = self.terms.iter().filter(|term| !term.negated).filter_map(|term| set(&term.test));
        sets.reduce(|mut all, next| {
            all.retain(|item| next.contains(item));
            all
        })
    }
}

/// The text that [`Filter::parse`] reads.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{}", term.text)?;
        }
        Ok(())
    }
}

impl Serialize for Filter {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&Cow::<str>::deserialize(d)?).map_err(D::Error::custom)
    }
}

impl Test {
    /// Returns whether a job passes the test. `value` is the value at the test's path in the payload. Adds to `steps`
    /// how much was compared.
    fn holds(&self, job: &JobRecord, now: Timestamp, value: Option<&str>, steps: &mut u64) -> bool {
        let mut any_of = |patterns: &[Pattern], text: &str| {
            patterns.iter().any(|pattern| {
                *steps += pattern.steps(text);
                pattern.matches(text)
            })
        };
        match self {
            Self::State(words) => words.iter().any(|word| match *word {
                StateWord::Stored(state) => job.state == state,
                StateWord::Shown(status) => job.status(now) == status,
            }),
            Self::Name(name, patterns) => name.any_of(job, |text| any_of(patterns, text)),
            Self::Id(parts) => {
                *steps += parts.len() as u64;
                let digits = format!("{:032x}", u128::from_be_bytes(*job.id.as_bytes()));
                parts.iter().any(|part| part.holds(job.id, &digits))
            }
            Self::Priority(levels) => levels.contains(&job.priority),
            Self::Attempt(ranges) => {
                *steps += ranges.len() as u64;
                ranges.iter().any(|(compare, n)| compare.holds(i64::from(job.attempt), *n))
            }
            Self::Time(instant, ranges) => {
                *steps += ranges.len() as u64;
                instant
                    .distance_ms(job, now)
                    .is_some_and(|ms| ranges.iter().any(|(compare, to)| compare.holds(ms, *to)))
            }
            Self::Error(texts) => {
                let error = job.failures.last().map_or("", |failure| failure.error.as_str());
                *steps += (texts.len() * error.len()) as u64;
                !job.failures.is_empty() && texts.iter().any(|text| error.contains(text))
            }
            Self::Payload(_, patterns) => value.is_some_and(|text| any_of(patterns, text)),
        }
    }

    /// Returns the patterns of the test.
    fn patterns(&self) -> &[Pattern] {
        match self {
            Self::Name(_, patterns) | Self::Payload(_, patterns) => patterns,
            _ => &[],
        }
    }

    /// Returns the stored states in which the test can match; `None` means all.
    fn states(&self) -> Option<Vec<State>> {
        match self {
            Self::State(words) => {
                let mut states = Vec::with_capacity(words.len());
                for word in words {
                    let state = match *word {
                        StateWord::Stored(state) => state,
                        StateWord::Shown(_) => State::Waiting,
                    };
                    if !states.contains(&state) {
                        states.push(state);
                    }
                }
                Some(states)
            }
            Self::Time(Instant::Due, _) => Some(vec![State::Waiting]),
            _ => None,
        }
    }

    /// Returns the queues in which the test can match; `None` means all.
    fn queues(&self) -> Option<Vec<String>> {
        match self {
            Self::Name(Name::Queue, patterns) => {
                patterns.iter().map(|pattern| pattern.as_literal().map(str::to_owned)).collect()
            }
            _ => None,
        }
    }
}

impl Name {
    /// Returns whether one of the job's names is `wanted`.
    fn any_of(self, job: &JobRecord, mut wanted: impl FnMut(&str) -> bool) -> bool {
        match self {
            Self::Kind => wanted(&job.kind),
            Self::Queue => wanted(&job.queue),
            Self::Tag => job.tags.iter().any(|tag| wanted(tag)),
            Self::Group => job.group.as_deref().is_some_and(wanted),
            Self::Concurrency => job.concurrency.as_ref().is_some_and(|of| wanted(&of.key)),
            Self::Unique => job.unique.as_ref().is_some_and(|unique| wanted(&unique.key)),
            Self::Worker => {
                job.running.as_ref().is_some_and(|running| wanted(&running.worker))
                    || job.failures.iter().any(|failure| wanted(&failure.worker))
            }
        }
    }
}

impl Instant {
    /// Returns the distance from now in milliseconds: how far ahead a due time is, how long ago others are. `None` if
    /// the job has no such instant.
    fn distance_ms(self, job: &JobRecord, now: Timestamp) -> Option<i64> {
        let ahead = |ms: u64| ms.cast_signed() - now.as_ms().cast_signed();
        match self {
            Self::Due => (job.state == State::Waiting).then(|| ahead(job.run_at.as_ms())),
            Self::Created => Some(-ahead(job.created_at.as_ms())),
            Self::Failed => job.failures.last().map(|failure| -ahead(failure.ended_ms)),
            Self::Finished => job.finished_at.map(|at| -ahead(at.as_ms())),
        }
    }
}

impl IdPart {
    /// `all` are the digits of the id.
    fn holds(&self, id: JobId, all: &str) -> bool {
        match self {
            Self::Whole(whole) => *whole == id,
            Self::Part(digits) => all.starts_with(digits) || all.ends_with(digits),
        }
    }
}

#[cfg(test)]
mod tests;
