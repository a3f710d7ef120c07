//! A message: its body, its attributes, and the job that it is in the store.
//!
//! The body is the payload, so that `punctual show` and workers of other languages read it as it was sent. Attributes are headers of the
//! job, which bounds them: see [`ATTRIBUTES_BYTES_MAX`].

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use punctual::{JobOptions, JobRecord, NewJob, Payload, limits::MAX_ATTEMPTS_MAX};
use serde::{Deserialize, Serialize};

use super::fault::{Code, Fault};

/// The kind of jobs that are messages.
pub(super) const KIND: &str = "sqs.message";
/// The largest message with its attributes that any queue takes, in bytes.
pub(super) const BYTES_MAX: usize = 1024 * 1024;
/// Most attributes of one message.
const ATTRIBUTES_MAX: usize = 10;
/// Most bytes of all attributes, as headers of the job have them: names, types, and values (bytes as base64). A job has 8 KiB of headers.
/// The rest is for those of this protocol, for a trace, and for what a move to a dead-letter queue adds.
pub(super) const ATTRIBUTES_BYTES_MAX: usize = 6 * 1024;
/// The longest name or type of an attribute, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// The longest trace header, in bytes.
const TRACE_BYTES_MAX: usize = 512;

/// What the headers of attributes begin with.
const ATTRIBUTE: &str = "sqs.attribute.";
/// The header with the generation of the queue that it was sent to, as a number.
pub(super) const GENERATION: &str = "sqs.generation";
/// The header with the id for deduplication, of a message of a FIFO queue.
pub(super) const DEDUPLICATION: &str = "sqs.deduplication";
/// The header with the sender.
pub(super) const SENDER: &str = "sqs.sender";
/// The header with the trace header of AWS X-Ray.
pub(super) const TRACE: &str = "sqs.trace";
/// The header with the id of a message that was moved.
pub(super) const ID: &str = "sqs.id";
/// The header with the time at which a moved message was sent, in Unix milliseconds.
pub(super) const SENT: &str = "sqs.sent";
/// The header with the queue that a message was moved from.
pub(super) const FROM: &str = "sqs.from";
/// The header with how often a message was received as an earlier job of its queue.
pub(super) const RECEIVES: &str = "sqs.receives";

/// An attribute, as it is in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attribute {
    /// `String`, `Number` or `Binary`, and a label after a dot.
    pub(super) data_type: String,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Bytes(Vec<u8>),
}

/// An attribute, as requests and answers have it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AttributeBody {
    data_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    string_value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_value: Option<String>,
}

impl AttributeBody {
    fn read(self, name: &str) -> Result<Attribute, Fault> {
        let wrong = |why: &str| Fault::value(format!("The message attribute '{name}' {why}."));
        let data_type = self.data_type.filter(|text| !text.is_empty());
        let data_type = data_type.ok_or_else(|| wrong("must contain a non-empty message attribute type"))?;
        let base = data_type.split('.').next().unwrap_or_default();
        // A colon ends the type in the header.
        if NAME_BYTES_MAX < data_type.len() || data_type.chars().any(|c| c.is_control() || c == ':') {
            return Err(wrong("has a type that is too long, or has a character that is not allowed"));
        }
        let value = match (base, self.string_value, self.binary_value) {
            ("String", Some(text), None) => Value::Text(text),
            ("Number", Some(text), None) if text.trim().parse::<f64>().is_ok() => Value::Text(text),
            ("Number", Some(_), None) => return Err(wrong("has a value that is not a number")),
            ("Binary", None, Some(text)) => {
                let bytes = STANDARD.decode(&text).map_err(|_| wrong("has a value that is not base64"))?;
                Value::Bytes(bytes)
            }
            ("String" | "Number" | "Binary", _, _) => {
                return Err(wrong("must have one value, that of its type"));
            }
            _ => return Err(wrong("has a type that does not begin with String, Number or Binary")),
        };
        if value.len() == 0 {
            return Err(wrong("must contain a non-empty value"));
        }
        if let Value::Text(text) = &value {
            check_text(text)?;
        }
        Ok(Attribute { data_type, value })
    }
}

impl From<&Attribute> for AttributeBody {
    fn from(attribute: &Attribute) -> Self {
        let (string_value, binary_value) = match &attribute.value {
            Value::Text(text) => (Some(text.clone()), None),
            Value::Bytes(bytes) => (None, Some(STANDARD.encode(bytes))),
        };
        Self { data_type: Some(attribute.data_type.clone()), string_value, binary_value }
    }
}

impl Value {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

impl Attribute {
    /// Returns the value of the header.
    fn header(&self) -> String {
        let value = match &self.value {
            Value::Text(text) => Cow::Borrowed(text.as_str()),
            Value::Bytes(bytes) => Cow::Owned(STANDARD.encode(bytes)),
        };
        format!("{}:{value}", self.data_type)
    }

    fn of_header(text: &str) -> Option<Self> {
        let (data_type, value) = text.split_once(':')?;
        let value = if data_type.starts_with("Binary") {
            Value::Bytes(STANDARD.decode(value).ok()?)
        } else {
            Value::Text(value.to_owned())
        };
        Some(Self { data_type: data_type.to_owned(), value })
    }
}

/// Reads attributes of a message, and checks their names.
pub(super) fn attributes(
    given: BTreeMap<String, AttributeBody>,
) -> Result<BTreeMap<String, Attribute>, Fault> {
    if ATTRIBUTES_MAX < given.len() {
        let n = given.len();
        return Err(Fault::value(format!("{n} message attributes are over the limit of {ATTRIBUTES_MAX}.")));
    }
    given
        .into_iter()
        .map(|(name, body)| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            let lower = name.to_ascii_lowercase();
            let is_right = (1..=NAME_BYTES_MAX).contains(&name.len())
                && name.chars().all(is_plain)
                && !name.starts_with('.')
                && !name.ends_with('.')
                && !name.contains("..")
                && !lower.starts_with("aws.")
                && !lower.starts_with("amazon.");
            if !is_right {
                return Err(Fault::value(format!("'{name}' is not a valid message attribute name.")));
            }
            let attribute = body.read(&name)?;
            Ok((name, attribute))
        })
        .collect()
}

/// Reads the attributes of a message that AWS defines: its trace.
pub(super) fn trace(given: BTreeMap<String, AttributeBody>) -> Result<Option<Attribute>, Fault> {
    let mut found = None;
    for (name, body) in given {
        if name != "AWSTraceHeader" {
            return Err(Fault::value(format!("'{name}' is not a message system attribute.")));
        }
        let attribute = body.read(&name)?;
        if attribute.data_type != "String" || TRACE_BYTES_MAX < attribute.value.len() {
            return Err(Fault::value(format!(
                "AWSTraceHeader is a String of up to {TRACE_BYTES_MAX} bytes."
            )));
        }
        found = Some(attribute);
    }
    Ok(found)
}

/// Checks that a text has only characters that XML has, as SQS does.
fn check_text(text: &str) -> Result<(), Fault> {
    let is_allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    match text.chars().find(|c| !is_allowed(*c)) {
        None => Ok(()),
        Some(c) => Err(Fault::new(
            Code::InvalidMessageContents,
            format!(
                "Invalid character #x{:X}: allowed are #x9, #xA, #xD, and #x20 to #xFFFD except surrogates, and above.",
                u32::from(c)
            ),
        )),
    }
}

/// A message to send.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) body: String,
    pub(super) attributes: BTreeMap<String, Attribute>,
    pub(super) trace: Option<Attribute>,
}

impl Message {
    /// Checks a message that a queue takes up to `bytes_max` bytes of.
    pub(super) fn check(&self, bytes_max: usize) -> Result<(), Fault> {
        if self.body.is_empty() {
            return Err(Fault::missing("MessageBody"));
        }
        let bytes = self.bytes();
        if bytes_max < bytes {
            return Err(Fault::value(format!(
                "One or more parameters are invalid. Reason: Message must be shorter than {bytes_max} bytes."
            )));
        }
        check_text(&self.body)?;
        let headers = self
            .attributes
            .iter()
            .map(|(name, attribute)| ATTRIBUTE.len() + name.len() + attribute.header().len());
        let headers: usize = headers.sum();
        if ATTRIBUTES_BYTES_MAX < headers {
            return Err(Fault::value(format!(
                "Message attributes of {headers} bytes, as they are stored, are over the limit of {ATTRIBUTES_BYTES_MAX} of this \
                 server: put large values into the body."
            )));
        }
        Ok(())
    }

    /// Returns the size as SQS counts it: body, and names, types and values of attributes.
    pub(super) fn bytes(&self) -> usize {
        let attributes = self.attributes.iter();
        let sizes = attributes
            .map(|(name, attribute)| name.len() + attribute.data_type.len() + attribute.value.len());
        self.body.len() + sizes.sum::<usize>()
    }

    /// Returns the job of the message, without what its queue says.
    pub(super) fn job(self, id: punctual::JobId, queue: &str, generation: u64, sender: &str) -> NewJob {
        let payload = Payload {
            bytes: self.body.into_bytes(),
            content_type: Cow::Borrowed("text/plain; charset=utf-8"),
        };
        let mut job = NewJob::new(id, KIND, queue, payload);
        // How often a message may be received is for its queue to say.
        job.options = JobOptions { max_attempts: Some(MAX_ATTEMPTS_MAX), ..JobOptions::default() };
        job.headers.insert(GENERATION.to_owned(), generation.to_string());
        job.headers.insert(SENDER.to_owned(), sender.to_owned());
        if let Some(Attribute { value: Value::Text(text), .. }) = self.trace {
            job.headers.insert(TRACE.to_owned(), text);
        }
        for (name, attribute) in &self.attributes {
            job.headers.insert(format!("{ATTRIBUTE}{name}"), attribute.header());
        }
        job
    }
}

/// Returns the generation of the queue that a job was sent to, if it was sent by this protocol.
pub(super) fn generation_of(job: &JobRecord) -> Option<u64> {
    job.headers.get(GENERATION)?.parse().ok()
}

/// Returns how often the message of a running job was received.
pub(super) fn receives(job: &JobRecord) -> u32 {
    let before = job.headers.get(RECEIVES).and_then(|text| text.parse::<u32>().ok());
    before.unwrap_or(0).saturating_add(job.attempt)
}

/// Returns the body of a job: its payload, or base64 of one that is no text.
pub(super) fn body(job: &JobRecord) -> Cow<'_, str> {
    match std::str::from_utf8(&job.payload.bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(STANDARD.encode(&job.payload.bytes)),
    }
}

/// Returns the attributes of a job that a receiver asks for.
pub(super) fn attributes_of(job: &JobRecord, wanted: &[String]) -> BTreeMap<String, Attribute> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let is_wanted = |name: &str| {
        wanted.iter().any(|pattern| match pattern.strip_suffix(".*") {
            Some(prefix) => name.starts_with(prefix),
            None => pattern == "All" || pattern == name,
        })
    };
    let headers = job.headers.iter();
    let own = headers.filter_map(|(name, value)| Some((name.strip_prefix(ATTRIBUTE)?, value)));
    own.filter(|(name, _)| is_wanted(name))
        .filter_map(|(name, value)| Some((name.to_owned(), Attribute::of_header(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_their_headers() {
        for (data_type, value) in [
            ("String", Value::Text("a:b\nc".to_owned())),
            ("String.custom", Value::Text("ü".to_owned())),
            ("Number", Value::Text("-1.5e3".to_owned())),
            ("Binary.png", Value::Bytes(vec![0, 1, 255])),
        ] {
            let attribute = Attribute { data_type: data_type.to_owned(), value };
            assert_eq!(Attribute::of_header(&attribute.header()), Some(attribute));
        }
    }

    #[test]
    fn wrong_attributes_are_refused() {
        let of = |name: &str, data_type: &str, text: Option<&str>, bytes: Option<&str>| {
            let body = AttributeBody {
                data_type: Some(data_type.to_owned()),
                string_value: text.map(ToOwned::to_owned),
                binary_value: bytes.map(ToOwned::to_owned),
            };
            attributes(BTreeMap::from([(name.to_owned(), body)])).is_ok()
        };
        assert!(of("a", "String", Some("x"), None) && of("a.b-c_D", "Number", Some("1"), None));
        assert!(of("a", "Binary", None, Some("AAE=")));
        for name in ["", ".a", "a.", "a..b", "AWS.a", "amazon.a", "a b", "ä"] {
            assert!(!of(name, "String", Some("x"), None), "{name}");
        }
        assert!(!of("a", "Text", Some("x"), None) && !of("a", "", Some("x"), None));
        assert!(!of("a", "String", Some(""), None) && !of("a", "String", Some("\0"), None));
        assert!(!of("a", "String", None, None) && !of("a", "String", Some("x"), Some("AAE=")));
        assert!(!of("a", "Number", Some("x"), None) && !of("a", "Binary", None, Some("?")));
        assert!(!of("a", "String.a:b", Some("x"), None));
    }
}
