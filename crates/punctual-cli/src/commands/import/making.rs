//! Makes the job of an entry, or says why it cannot be a job. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use punctual::{JobId, NewJob, Payload, Timestamp, When, limits::INSTANT_MAX_MS};
use serde::de::IgnoredAny;
use serde_json::{Value, value::RawValue};

use super::{
    keys::Source,
    layout::{Becomes, Shape, Unit},
};
use crate::errors::{Failure, Result};

/// The header of a job with the id that its payload was found by.
const IMPORTED_ID: &str = "imported_id";
/// Bits of an id for the position of an element in a list. The bits above identify the run.
const PLACE_BITS: u32 = 36;
/// All bits of an id that give it an order.
const ORDER_BITS: u32 = 60;
/// Of a time in milliseconds the bits that give an id no order, about a second: a hash stands there, so that a million jobs of
/// one second have ids that lie apart.
const SECOND_BITS: u32 = 10;
/// Bits of an id that a time takes.
const TIME_BITS: u32 = 48 - SECOND_BITS;
/// Scores are doubles: a part of a millisecond so small is none.
const MS_ROUNDED: f64 = 0.001;

/// An entry that is no job, and why.
pub(super) type Made = std::result::Result<NewJob, String>;

/// Makes the jobs of one source in one run.
pub(super) struct Maker<'a> {
    shape: &'a Shape,
    source: &'a Source,
    /// As text, for ids.
    run: String,
    /// What the ids of a list's elements begin with.
    lead: u64,
}

impl<'a> Maker<'a> {
    pub(super) fn new(shape: &'a Shape, source: &'a Source, run: &str) -> Result<Self> {
        let number = u64::from_str_radix(run, 16).map_err(|e| {
            Failure::corrupt(format!("the key {:?} is damaged: its run is not a number", source.state()))
                .why(e.to_string())
        })?;
        Ok(Self { shape, source, run: run.to_owned(), lead: number >> (64 - (ORDER_BITS - PLACE_BITS)) })
    }

    /// Of a sorted set's member; `id` where its payload stands apart.
    pub(super) fn due(
        &self,
        (member, score, unit): (&[u8], &[u8], Unit),
        round: u64,
        payload: &[u8],
        id: Option<&[u8]>,
    ) -> Made {
        let number = number(score)?;
        let at = instant(number, unit)?;
        let mut job = self.job(payload, id, When::At(at))?;
        // Servers write the same number differently.
        let key = format!("import/{}/{round}/{:016x}/{}", self.run, number.to_bits(), BASE64.encode(member));
        job.id = JobId::derived(&job.queue, None, &key).led_by(at.as_ms() >> SECOND_BITS, TIME_BITS);
        checked(job)
    }

    /// Of a list's element: the `place`-th since the run began; `id` where its payload stands apart.
    pub(super) fn queued(&self, place: u64, payload: &[u8], id: Option<&[u8]>) -> Made {
        let mut job = self.job(payload, id, When::Now)?;
        let order = self.lead << PLACE_BITS | place;
        let key = format!("import/{}/{place}", self.run);
        job.id = JobId::derived(&job.queue, None, &key).led_by(order, ORDER_BITS);
        checked(job)
    }

    fn job(&self, payload: &[u8], id: Option<&[u8]>, run_at: When) -> Made {
        let mut job = match self.shape {
            Shape::Payload(becomes) => becomes.job(payload)?,
            Shape::Call(queue) => self.call(payload, queue.as_deref())?,
        };
        if let Some(id) = id {
            job.headers.insert(IMPORTED_ID.to_owned(), String::from_utf8_lossy(id).into_owned());
        }
        job.run_at = run_at;
        Ok(job)
    }

    /// `[id, queue, function, args]`, in a list `[function, args]`, too.
    fn call(&self, text: &[u8], queue: Option<&str>) -> Made {
        let parts: Vec<&RawValue> =
            serde_json::from_slice(text).map_err(|e| format!("the entry is not a JSON list: {e}"))?;
        let string = |at: usize, what: &str| {
            serde_json::from_str::<String>(parts[at].get()).map_err(|_| format!("the {what} is not a string"))
        };
        let (id, own_queue, kind, args) = match (parts.len(), self.source.is_list) {
            (4, _) => (Some(string(0, "id")?), Some(string(1, "queue")?), string(2, "function")?, parts[3]),
            (2, true) => (None, None, string(0, "function")?, parts[1]),
            (n, true) => {
                return Err(format!(
                    "a list of {n} is neither [function, args] nor [id, queue, function, args]"
                ));
            }
            (n, false) => return Err(format!("a list of {n} is not [id, queue, function, args]")),
        };
        // What stands in a list waits there, whatever it says.
        let own_queue =
            own_queue.filter(|_| !self.source.is_list).unwrap_or_else(|| self.source.name.clone());
        let queue = queue.map_or(own_queue, str::to_owned);
        let mut job = NewJob::new(placeholder(), kind, queue, Payload::json(args.get()));
        if let Some(id) = id {
            job.headers.insert(IMPORTED_ID.to_owned(), id);
        }
        Ok(job)
    }
}

impl Becomes {
    fn job(&self, bytes: &[u8]) -> Made {
        let is_json = serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
        let fields = match (&self.kinds.kind_field, &self.queue_field) {
            (None, None) => None,
            // Some JSON can't be read: what it names is not known, and so it must not go elsewhere.
            _ if is_json => Some(
                serde_json::from_slice::<Value>(bytes)
                    .map_err(|e| format!("the fields of the payload cannot be read: {e}"))?,
            ),
            _ => None,
        };
        let named = |field: &Option<String>, other: Option<&String>| {
            let field = field.as_deref();
            let named = field.and_then(|field| fields.as_ref()?.get(field)?.as_str().map(str::to_owned));
            named.or_else(|| other.cloned()).ok_or_else(|| {
                format!("the payload has no text in the field {:?}", field.unwrap_or_default())
            })
        };
        let kind = named(&self.kinds.kind_field, self.kinds.kind.as_ref())?;
        let queue = named(&self.queue_field, Some(&self.queue))?;
        let content_type = if is_json { Payload::JSON } else { "application/octet-stream" };
        let payload = Payload { bytes: bytes.to_vec(), content_type: content_type.into() };
        Ok(NewJob::new(placeholder(), kind, queue, payload))
    }
}

/// The id that a job has until its own is put in, which depends on its queue.
fn placeholder() -> JobId {
    JobId::derived("", None, "")
}

fn checked(job: NewJob) -> Made {
    match job.check() {
        Ok(()) => Ok(job),
        Err(e) => Err(e.to_string()),
    }
}

/// A score as a server writes it.
pub(super) fn number(score: &[u8]) -> std::result::Result<f64, String> {
    let text = String::from_utf8_lossy(score);
    text.parse()
        .ok()
        .filter(|n: &f64| !n.is_nan())
        .ok_or_else(|| format!("the score {text:?} is not a number"))
}

/// When an entry of this score is due: never early, and what lies before 1970 is due now.
pub(super) fn instant(score: f64, unit: Unit) -> std::result::Result<Timestamp, String> {
    let (ms, read_as) = match unit {
        Unit::S => (score * 1_000.0, "seconds"),
        Unit::Ms => (score, "milliseconds"),
    };
    let ms = (ms - MS_ROUNDED).ceil().max(0.0);
    if ms <= INSTANT_MAX_MS as f64 {
        Ok(Timestamp::saturating_from_ms(ms as u64))
    } else {
        Err(format!("the score {score}, in {read_as}, is after the year 9999"))
    }
}

/// The text of an entry, for people: its beginning.
pub(super) fn sample(bytes: &[u8]) -> String {
    const CHARS_MAX: usize = 60;
    crate::output::cut(&String::from_utf8_lossy(&bytes[..bytes.len().min(4 * CHARS_MAX)]), CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::{super::layout::Kinds, *};

    fn becomes() -> Becomes {
        Becomes {
            kinds: Kinds { kind: Some("k".into()), kind_field: None },
            queue: "q".into(),
            queue_field: None,
        }
    }

    fn source(is_list: bool) -> Source {
        Source { key: "queue:mail".into(), is_list, name: "mail".into() }
    }

    #[test]
    fn scores_become_times_that_are_never_early() {
        let ms = |score, unit| instant(score, unit).map(Timestamp::as_ms);
        assert_eq!(ms(1_795_192_330.0, Unit::S), Ok(1_795_192_330_000));
        assert_eq!(ms(1_795_192_330.123, Unit::S), Ok(1_795_192_330_123));
        assert_eq!(ms(1_795_192_330.123_4, Unit::S), Ok(1_795_192_330_124));
        assert_eq!(ms(1_795_192_330_123.0, Unit::Ms), Ok(1_795_192_330_123));
        assert_eq!(ms(-5.0, Unit::S), Ok(0));
        assert_eq!(ms(f64::NEG_INFINITY, Unit::S), Ok(0));
        assert!(ms(f64::INFINITY, Unit::Ms).is_err() && ms(1_795_192_330_123.0, Unit::S).is_err());
        assert!(number(b"nan").is_err() && number(b"x").is_err());
    }

    #[test]
    fn ids_of_a_list_rise_with_their_places_and_those_of_equal_elements_differ() {
        let (shape, source) = (Shape::Payload(becomes()), source(true));
        let maker = Maker::new(&shape, &source, "f123456789abcdef").unwrap();
        let ids: Vec<JobId> = (0..3_000).map(|at| maker.queued(at, b"{}", None).unwrap().id).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
        let again = Maker::new(&shape, &source, "f123456789abcdef").unwrap();
        assert_eq!(again.queued(7, b"{}", None).unwrap().id, ids[7]);
        let other = Maker::new(&shape, &source, "0123456789abcdef").unwrap();
        assert_ne!(other.queued(7, b"{}", None).unwrap().id, ids[7]);
    }

    #[test]
    fn ids_of_a_sorted_set_rise_with_their_seconds_and_differ_by_round_member_and_score() {
        let (shape, source) = (Shape::Payload(becomes()), source(false));
        let maker = Maker::new(&shape, &source, "1").unwrap();
        let id = |member: &[u8], score: &[u8], round| {
            maker.due((member, score, Unit::S), round, b"{}", None).unwrap().id
        };
        assert!(id(b"z", b"1700000000", 0) < id(b"a", b"1700000002", 0));
        assert_eq!(id(b"a", b"1.5", 0), id(b"a", b"1.50", 0));
        let ids = [id(b"a", b"5", 0), id(b"b", b"5", 0), id(b"a", b"6", 0), id(b"a", b"5", 1)];
        assert!((0..4).all(|i| !ids[..i].contains(&ids[i])));
    }

    #[test]
    fn calls_become_jobs_of_their_function() {
        let shape = Shape::Call(None);
        let (list, set) = (source(true), source(false));
        let (list, set) = (Maker::new(&shape, &list, "1").unwrap(), Maker::new(&shape, &set, "1").unwrap());
        let job = list.queued(0, br#"["send", {"to":  "ana"}]"#, None).unwrap();
        assert_eq!((job.kind.as_str(), job.queue.as_str()), ("send", "mail"));
        assert_eq!(job.payload, Payload::json(r#"{"to":  "ana"}"#));
        let due = |text: &[u8]| set.due((text, b"5", Unit::S), 0, text, None);
        let job = due(br#"["u-1", "sms", "send", [1, 2]]"#).unwrap();
        assert_eq!(
            (job.kind.as_str(), job.queue.as_str(), job.headers["imported_id"].as_str()),
            ("send", "sms", "u-1")
        );
        assert_eq!(job.run_at, When::At(Timestamp::saturating_from_ms(5_000)));
        for bad in
            [&b"{}"[..], b"[1", b"[]", br#"["send", 1]"#, br#"["u", "q", 3, 4]"#, br#"["u", "$q", "k", 4]"#]
        {
            assert!(due(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert!(list.queued(0, b"[7, 1]", None).is_err());
    }

    #[test]
    fn fields_of_a_payload_name_kind_and_queue() {
        let becomes = Becomes {
            kinds: Kinds { kind: None, kind_field: Some("type".into()) },
            queue_field: Some("to".into()),
            ..becomes()
        };
        let job = becomes.job(br#"{"type":"a","to":"b"}"#).unwrap();
        assert_eq!((job.kind.as_str(), job.queue.as_str()), ("a", "b"));
        assert_eq!(becomes.job(br#"{"type":"a"}"#).unwrap().queue, "q");
        assert!(becomes.job(b"{}").is_err() && becomes.job(b"\xff").is_err());
        let both = Becomes { kinds: Kinds { kind: Some("k".into()), ..becomes.kinds }, ..becomes };
        assert_eq!(both.job(b"\xff").unwrap().kind, "k");
        let unreadable = both.job(br#"{"type":"a","n":1e999}"#).unwrap_err();
        assert!(unreadable.starts_with("the fields of the payload cannot be read"), "{unreadable}");
        let plain = super::tests::becomes().job(b"\xff\x00").unwrap();
        assert_eq!(plain.payload.content_type, "application/octet-stream");
    }
}
