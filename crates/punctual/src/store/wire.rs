//! The JSON forms of calls and jobs: what the HTTP API reads and writes, and the lines of `push --batch` and `ls -o ndjson`.
//!
//! Most types of [`store`](super) are their own form. Those with payloads have one here, since a payload is written as the
//! JSON that it is, and read back byte by byte. Each call of the HTTP API is `POST /api/v1/CALL` with one of the bodies
//! below.

mod act;
#[cfg(feature = "http")]
pub(crate) mod call;
mod lease;
mod line;
mod read;
mod record;
mod view;

pub use self::{
    act::{ActBody, ActReply, ActedBody, ActionBody, ActionView},
    lease::{
        BatchBody, ExtendBody, ExtendReply, QueueBody, ReserveBody, ReservedBody, SettleBody, SettleReply,
        SettledBody, SettlementBody, SettlementView, TakeBody,
    },
    line::{LINE_BYTES_MAX, NewJobView, derive_id, job, payload, unchecked, words},
    read::{
        CountBody, DoctorReply, EnqueueBody, EnqueueReply, GetBody, HolderBody, IdentityReply, JobReply,
        JobsReply, ListBody, Nothing, NowReply, PageBody, QueueCallBody, QueuesBody, QueuesReply, StoreReply,
        SweepBody, WAIT_MAX, WaitBody, WaitReply,
    },
    view::JobView,
};

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};

use super::CallId;
use crate::core::{
    error::{Error, Result},
    limits::BATCH_MAX,
};

/// Reads a list of at most 1,000 items. It stops at the first one over the limit, however many follow.
fn items<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    struct Items<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {BATCH_MAX} items")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == BATCH_MAX {
                    return Err(A::Error::invalid_length(BATCH_MAX + 1, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }

    d.deserialize_seq(Items(PhantomData))
}

/// Returns the number of a call; `None` if the caller gave none.
fn number(instance: Option<u128>, call: Option<u64>) -> Result<Option<CallId>> {
    match (instance, call) {
        (None, None) => Ok(None),
        (Some(instance), Some(number)) => match u64::try_from(instance) {
            Ok(instance) => Ok(Some(CallId { instance, number })),
            Err(_) => Err(Error::invalid("instance has more than 16 hexadecimal digits")),
        },
        _ => Err(Error::invalid("instance and call must both be given, or neither")
            .with_hint("draw a random instance when the process starts, and count its calls from 1")),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use crate::{
        core::{
            backoff::Backoff,
            id::IdMaker,
            job::{Concurrency, JobRecord, NewJob, OnConflict, Payload, Priority, Unique},
            notes::LogLine,
            time::{Timestamp, When},
        },
        store::{
            Action, Lease, Settlement, Store as _, Verdict,
            clock::{Clock, ManualClock},
            memory::MemoryStore,
        },
    };

    use serde_json::value::RawValue;

    use super::*;

    /// An empty store whose clock stands still.
    fn store() -> MemoryStore {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_192_330_000));
        MemoryStore::new(Clock::Manual(clock))
    }

    /// A job as the store keeps it.
    async fn kept(store: &MemoryStore, number: u64, job: NewJob) -> JobRecord {
        let call = CallId { instance: 1, number };
        let id = store.enqueue(call, &[job]).await.unwrap()[0].id().unwrap();
        store.get(id).await.unwrap().unwrap()
    }

    fn jobs() -> Vec<NewJob> {
        let mut ids = IdMaker::default();
        let mut plain = |payload| NewJob::new(ids.make(1_795_192_330_000, 0, 7), "k", "q", payload);
        let typed =
            |bytes: &[u8], of: &'static str| Payload { bytes: bytes.to_vec(), content_type: of.into() };
        let mut full = plain(Payload::json(r#"{"n": 12345678901234567890.10}"#));
        full.run_at = When::At(Timestamp::saturating_from_ms(1_795_192_330_001));
        full.expires_at = Some(When::At(Timestamp::saturating_from_ms(1_795_192_330_002)));
        full.group = Some("g".into());
        full.concurrency = Some(Concurrency { key: "c".into(), limit: 3 });
        full.unique = Some(Unique::key("u").window(Duration::from_secs(1)).on_conflict(OnConflict::Replace));
        full.options.priority = Some(Priority::High);
        full.options.max_attempts = Some(3);
        full.options.backoff = Some(Backoff::linear(Duration::from_secs(1)).jitter(false));
        full.options.timeout = Some(Duration::from_secs(7));
        full.options.lease = Some(Duration::from_secs(9));
        full.tags = vec!["a".into(), "b c".into()];
        full.headers = [("traceparent".to_owned(), "00-\"x\"".to_owned())].into();
        vec![
            full,
            plain(Payload::json("null")),
            plain(typed(b"{\"a\":1}", "application/vnd.x+json; charset=utf-8")),
            plain(typed("kein JSON,\nzwei Zeilen".as_bytes(), "text/plain")),
            plain(typed(&[0xff, 0], "image/x")),
            // A library may hand over anything and call it JSON.
            plain(typed(b"{broken", Payload::JSON)),
            plain(typed(&[0xff], Payload::JSON)),
        ]
    }

    #[tokio::test]
    async fn what_is_printed_can_be_read_again() {
        let store = store();
        let now = store.now().await.unwrap();
        for (i, job) in jobs().into_iter().enumerate() {
            let record = kept(&store, i as u64 + 1, job.clone()).await;
            let view = JobView::new(&record, now).with_details(&record);
            let line = serde_json::to_string(&view).unwrap();
            assert!(!line.contains('\n'));
            let names: BTreeMap<String, &RawValue> = serde_json::from_str(&line).unwrap();
            assert!(names.keys().all(|name| JobView::FIELDS.contains(&name.as_str())), "{line}");
            let read = super::job(&line, || jobs().remove(0).id).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!((&read.payload, read.id), (&job.payload, job.id), "{line}");
            assert_eq!(read.run_at, When::At(job.run_at.resolve(now)), "{line}");
            assert_eq!((read.group, read.concurrency, read.unique), (job.group, job.concurrency, job.unique));
            assert_eq!((read.expires_at, read.tags, read.headers), (job.expires_at, job.tags, job.headers));
            if job.options.lease.is_some() {
                assert_eq!(read.options, job.options, "{line}");
            }
        }
    }

    /// Payloads that need care, for both exact forms.
    fn odd_payloads() -> Vec<Payload> {
        let typed =
            |bytes: &[u8], of: &'static str| Payload { bytes: bytes.to_vec(), content_type: of.into() };
        vec![
            Payload::json("{\n  \"a\": \"b\\nc\"\r\n}"),
            Payload::json(" 1"),
            Payload::json("1\n"),
            Payload::json(""),
            Payload::json(r#"{"a":1,"a":1e999,"\u0061":"\ud834\udd1e"}"#),
            Payload::json("[".repeat(50_000) + &"]".repeat(50_000)),
            typed("\u{0}\u{7f}\u{2028}".as_bytes(), "text/plain; charset=utf-8"),
            typed(b"", "x"),
        ]
    }

    #[tokio::test]
    async fn the_exact_form_of_a_job_is_read_as_the_same_job() {
        let store = store();
        let odd = odd_payloads().into_iter().map(|payload| NewJob { payload, ..jobs().remove(1) });
        let mut ids = IdMaker::default();
        for (i, mut job) in jobs().into_iter().chain(odd).enumerate() {
            job.id = ids.make(1_795_192_330_000, 1, 7);
            let new = serde_json::to_string(&NewJobView::new(&job)).unwrap();
            assert_eq!(unchecked(&new, || jobs().remove(0).id).unwrap(), job, "{new}");
            let mut record = kept(&store, i as u64 + 1, job).await;
            record.result = Some(record.payload.clone());
            record.notes.push(LogLine { attempt: 1, at_ms: 5, text: "a\nb".into() });
            let text = serde_json::to_string(&JobView::exact(&record, record.created_at)).unwrap();
            assert_eq!(serde_json::from_str::<JobRecord>(&text).unwrap(), record, "{text}");
        }
    }

    /// A server derives an id itself, so that a token of some queues can use keys.
    #[test]
    fn a_key_is_sent_in_place_of_the_id_that_follows_from_it() {
        let plain = || NewJob::new(jobs().remove(0).id, "k", "mail", Payload::json("1"));
        let sent = |job: &NewJob| serde_json::to_string(&NewJobView::new(job)).unwrap();
        for unique in [None, Some(Unique::key("u")), Some(Unique::key("u").across_kinds())] {
            for across_kinds in [false, true] {
                let mut job = NewJob { unique: unique.clone(), group: Some("acme".to_owned()), ..plain() };
                job.derive_id("welcome:42", across_kinds);
                let text = sent(&job);
                let read = unchecked(&text, || plain().id).unwrap();
                assert_eq!((read.id, &read.unique), (job.id, &job.unique), "{text}");
                // One field of a line says it of both keys.
                let is_said = !across_kinds || unique.as_ref().is_none_or(|unique| unique.across_kinds);
                assert_eq!(!text.contains(r#""id":"#), is_said, "{text}");
                assert_eq!(read.proven_key().is_some(), is_said, "{text}");
            }
        }
        // A key from which the id does not follow proves nothing.
        let mut moved = plain();
        moved.derive_id("welcome:42", false);
        moved.queue = "sms".to_owned();
        assert!(moved.proven_key().is_none() && sent(&moved).contains(r#""id":"#));
    }

    #[test]
    fn relative_times_of_a_new_job_are_kept() {
        for (run_at, expires_at) in [
            (When::Now, Some(When::Now)),
            (When::In(Duration::from_secs(1)), Some(When::In(Duration::from_secs(2)))),
        ] {
            let job = NewJob { run_at, expires_at, ..jobs().remove(1) };
            let text = serde_json::to_string(&NewJobView::new(&job)).unwrap();
            let read = unchecked(&text, || jobs().remove(0).id).unwrap();
            let now = Timestamp::saturating_from_ms(7);
            assert_eq!(
                (read.run_at, read.expires_at.map(|at| at.resolve(now))),
                (run_at, expires_at.map(|at| at.resolve(now)))
            );
        }
    }

    #[tokio::test]
    async fn json_over_many_lines_becomes_one() {
        let payload = Payload::json("{\n  \"a\": \"b\\nc\"\r\n}\n");
        let record = kept(&store(), 1, NewJob { payload, ..jobs().remove(1) }).await;
        let line = serde_json::to_string(&JobView::new(&record, record.created_at)).unwrap();
        assert!(line.contains(r#""payload":{   "a": "b\nc"  }"#), "{line}");
    }

    fn settlement(text: &str) -> Result<Settlement> {
        serde_json::from_str::<SettlementBody<'_>>(text).unwrap().settlement(None)
    }

    #[test]
    fn a_settlement_is_read_as_it_was_written_and_mistakes_are_named() {
        let lease = Lease { job: jobs().remove(0).id, fence: 7 };
        let at = When::At(Timestamp::saturating_from_ms(9));
        let error = || "no".to_owned();
        for verdict in [
            Verdict::Ack,
            Verdict::AckWith { result: Payload::json("null") },
            Verdict::Retry { at, error: error() },
            Verdict::RetryAfter { at: When::In(Duration::from_millis(1)), error: error() },
            Verdict::Snooze { after: Duration::ZERO, reason: Some(error()) },
            Verdict::Release,
            Verdict::Cancel { reason: None },
            Verdict::Dead { error: error() },
        ] {
            let settled = Settlement { lease, verdict };
            let text = serde_json::to_string(&SettlementView::from(&settled)).unwrap();
            assert_eq!(settlement(&text).unwrap(), settled, "{text}");
        }
        let id = lease.job;
        for (rest, message) in [
            (r#""verdict":"ack""#.to_owned(), "fence is missing"),
            (r#""fence":1"#.to_owned(), "verdict is missing"),
            (r#""fence":1,"verdict":"done""#.to_owned(), "\"done\" is no verdict"),
            (
                r#""fence":1,"verdict":"ack","error":"x""#.to_owned(),
                "error does not belong to the verdict ack",
            ),
            (r#""fence":1,"verdict":"snooze""#.to_owned(), "after_ms is missing"),
            (
                r#""fence":1,"verdict":"retry","after_ms":1,"at_ms":1"#.to_owned(),
                "after_ms and at_ms are both given",
            ),
        ] {
            let wrong = settlement(&format!("{{\"id\":\"{id}\",{rest}}}")).unwrap_err();
            assert_eq!(wrong.to_string(), message);
        }
    }

    #[test]
    fn an_action_is_read_as_it_was_written_and_mistakes_are_named() {
        for action in [
            Action::Cancel { reason: Some("x".into()) },
            Action::Reschedule(When::At(Timestamp::saturating_from_ms(9))),
            Action::Reschedule(When::In(Duration::from_millis(9))),
            Action::RescheduleBy(-9),
            Action::RunNow,
            Action::Reprioritise(Priority::Low),
            Action::EditPayload(Payload::json("{ }")),
            Action::Retry,
            Action::Delete,
        ] {
            let text = serde_json::to_string(&ActionView::from(&action)).unwrap();
            assert_eq!(
                serde_json::from_str::<ActionBody<'_>>(&text).unwrap().action().unwrap(),
                action,
                "{text}"
            );
        }
        for (text, message) in [
            ("{}", "action is missing"),
            (r#"{"action":"kill"}"#, "\"kill\" is no action"),
            (r#"{"action":"retry","reason":"x"}"#, "reason does not belong to the action retry"),
            (r#"{"action":"edit"}"#, "payload is missing"),
            (r#"{"action":"reschedule"}"#, "a reschedule takes one of run_at_ms, delay_ms and by_ms"),
        ] {
            let wrong = serde_json::from_str::<ActionBody<'_>>(text).unwrap().action().unwrap_err();
            assert_eq!(wrong.to_string(), message);
        }
    }
}
