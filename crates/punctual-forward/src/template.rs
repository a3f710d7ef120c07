//! Templates: texts with fields of a job.

use punctual::{Error, JobRecord, Result, job::did_you_mean};

/// Fields without a name.
const FIELDS: [&str; 6] = ["id", "kind", "queue", "group", "priority", "attempt"];
/// The prefixes of fields with a name.
const NAMED: [&str; 2] = ["header", "tag"];
/// The longest template, in bytes.
const BYTES_MAX: usize = 4 * 1024;

/// The longest field name that an error repeats, in bytes. A longer one may be part of a secret.
const SHOWN_BYTES_MAX: usize = 32;

/// A text with fields of a job in it: `mail.{kind}`, `{header.tenant}`, `{tag.region}`.
///
/// The fields are `id`, `kind`, `queue`, `group`, `priority` (`high`, `normal` or `low`), `attempt`, `header.NAME`
/// and `tag.NAME`. `tag.NAME` is the text after `NAME:` or `NAME=` in the first tag of the job that begins so. `{{`
/// and `}}` are braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Id,
    Kind,
    Queue,
    Group,
    Priority,
    Attempt,
    Header(String),
    Tag(String),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// `Invalid` for an unknown field, for braces that do not match, and for more than 4 KiB.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if BYTES_MAX < text.len() {
            return Err(Error::invalid(format!("a template has at most {BYTES_MAX} bytes")));
        }
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, on) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = on.strip_prefix("{{").or_else(|| on.strip_prefix("}}")) {
                plain.push_str(&on[..1]);
                rest = after;
                continue;
            }
            let field = on.strip_prefix('{').and_then(|on| on.split_once('}'));
            let Some((name, after)) = field else {
                // The text around it may be secret.
                let at = text[..text.len() - on.len()].chars().count() + 1;
                return Err(Error::invalid(format!("a brace has no other half, at character {at}"))
                    .with_hint("a field is {kind} or {header.NAME}; a brace itself is written twice"));
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Field(Field::parse(name)?));
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { parts })
    }

    /// Returns the text, if it is the same for all jobs.
    pub(crate) fn fixed(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the text with the same value for every field.
    #[cfg(feature = "webhook")]
    pub(crate) fn with_all(&self, value: &str) -> String {
        let texts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Field(_) => value,
        });
        texts.collect()
    }

    /// Returns the text for a job.
    ///
    /// # Errors
    /// A text that says what the job lacks.
    pub(crate) fn fill(&self, job: &JobRecord) -> std::result::Result<String, String> {
        self.fill_with(job, |value, _| value.to_owned())
    }

    /// Returns the text for a job, with `encode` applied to the values of fields. `encode` also gets the text before
    /// the value.
    ///
    /// # Errors
    /// A text that says what the job lacks.
    pub(crate) fn fill_with(
        &self,
        job: &JobRecord,
        encode: impl Fn(&str, &str) -> String,
    ) -> std::result::Result<String, String> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Field(field) => {
                    let value = encode(&field.of(job)?, &filled);
                    filled.push_str(&value);
                }
            }
        }
        Ok(filled)
    }
}

impl Field {
    fn parse(name: &str) -> Result<Self> {
        Ok(match name.split_once('.') {
            None => match name {
                "id" => Self::Id,
                "kind" => Self::Kind,
                "queue" => Self::Queue,
                "group" => Self::Group,
                "priority" => Self::Priority,
                "attempt" => Self::Attempt,
                _ => return Err(unknown(name)),
            },
            Some(("header", header)) if !header.is_empty() => Self::Header(header.to_owned()),
            Some(("tag", tag)) if !tag.is_empty() => Self::Tag(tag.to_owned()),
            Some(_) => return Err(unknown(name)),
        })
    }

    fn of(&self, job: &JobRecord) -> std::result::Result<String, String> {
        Ok(match self {
            Self::Id => job.id.to_string(),
            Self::Kind => job.kind.clone(),
            Self::Queue => job.queue.clone(),
            Self::Group => job.group.clone().ok_or("the job has no group")?,
            Self::Priority => job.priority.to_string(),
            Self::Attempt => job.attempt.to_string(),
            Self::Header(name) => {
                job.headers.get(name).cloned().ok_or_else(|| format!("the job has no header {name:?}"))?
            }
            Self::Tag(name) => job
                .tags
                .iter()
                .find_map(|tag| tag.strip_prefix(name)?.strip_prefix([':', '=']))
                .map(str::to_owned)
                .ok_or_else(|| format!("the job has no tag that begins with \"{name}:\""))?,
        })
    }
}

fn unknown(name: &str) -> Error {
    let head = name.split('.').next().unwrap_or(name);
    let near = did_you_mean(head, FIELDS.into_iter().chain(NAMED));
    let hint = match near {
        Some(near) if NAMED.contains(&near) => format!("did you mean {{{near}.NAME}}?"),
        Some(near) => format!("did you mean {{{near}}}?"),
        None => format!("fields are {}, header.NAME and tag.NAME", FIELDS.join(", ")),
    };
    let is_plain = |c: char| c.is_ascii_alphabetic() || "._-".contains(c);
    let shown = if name.len() <= SHOWN_BYTES_MAX && name.chars().all(is_plain) { name } else { "…" };
    Error::invalid(format!("{{{shown}}} is no field of a job")).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::job;

    fn filled(template: &str, job: &JobRecord) -> std::result::Result<String, String> {
        Template::parse(template).unwrap().fill(job)
    }

    #[test]
    fn fields_of_a_job_are_filled_in() {
        let mut job = job();
        job.headers = BTreeMap::from([("tenant".to_owned(), "acme".to_owned())]);
        job.tags = ["urgent", "region:eu", "size=xl"].map(str::to_owned).into();
        job.group = Some("g1".to_owned());
        assert_eq!(filled("a.{kind}.b.{queue}", &job).unwrap(), "a.email.send.b.mail");
        assert_eq!(filled("{header.tenant}/{tag.region}/{tag.size}/{group}", &job).unwrap(), "acme/eu/xl/g1");
        assert_eq!(filled("{priority}-{attempt}-{id}", &job).unwrap(), format!("normal-1-{}", job.id));
        assert_eq!(filled("{{{kind}}}", &job).unwrap(), "{email.send}");
        assert_eq!(filled("", &job).unwrap(), "");
    }

    #[test]
    fn what_a_job_lacks_is_told() {
        for (template, lacks) in [
            ("{header.tenant}", "the job has no header \"tenant\""),
            ("{tag.region}", "the job has no tag that begins with \"region:\""),
            ("{group}", "the job has no group"),
        ] {
            assert_eq!(filled(template, &job()).unwrap_err(), lacks);
        }
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for (template, hint) in [
            ("{knd}", "did you mean {kind}?"),
            ("{headers.x}", "did you mean {header.NAME}?"),
            ("{header.}", "did you mean {header.NAME}?"),
            ("{payload}", "fields are id, kind, queue, group, priority, attempt, header.NAME and tag.NAME"),
            ("{kind", "a field is {kind} or {header.NAME}; a brace itself is written twice"),
            ("kind}", "a field is {kind} or {header.NAME}; a brace itself is written twice"),
            ("{}", "fields are id, kind, queue, group, priority, attempt, header.NAME and tag.NAME"),
        ] {
            assert_eq!(Template::parse(template).unwrap_err().hint(), Some(hint), "{template}");
        }
        assert!(Template::parse(&"x".repeat(BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_text_without_fields_is_fixed() {
        assert_eq!(Template::parse("jobs").unwrap().fixed(), Some("jobs"));
        assert_eq!(Template::parse("").unwrap().fixed(), Some(""));
        assert_eq!(Template::parse("{kind}").unwrap().fixed(), None);
    }
}
