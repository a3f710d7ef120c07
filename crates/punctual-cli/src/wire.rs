//! Jobs as JSON: the lines that `push --batch` reads and `ls -o ndjson` prints. Printed lines can be read again.

mod line;
mod view;

pub(crate) use self::{
    line::{LINE_BYTES_MAX, derived_id, job, payload, words},
    view::JobView,
};

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc, time::Duration};

    use punctual::{
        Backoff, Client, NewJob, OnConflict, Payload, Priority, Timestamp, Unique, When,
        job::Concurrency,
        store::{
            clock::{Clock, ManualClock},
            memory::MemoryStore,
        },
    };

    use serde_json::value::RawValue;

    use super::*;

    /// A client of an empty store whose clock stands still.
    fn client() -> Client {
        let clock = ManualClock::new(Timestamp::saturating_from_ms(1_795_192_330_000));
        Client::new(Arc::new(MemoryStore::new(Clock::Manual(clock))))
    }

    fn jobs(client: &Client) -> Vec<NewJob> {
        let plain = |payload| NewJob::new(client.make_id(), "k", "q", payload);
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
        let client = client();
        let now = client.store().now().await.unwrap();
        for job in jobs(&client) {
            let id = client.push(vec![job.clone()]).await.unwrap()[0].id().unwrap();
            let record = client.get(id).await.unwrap().unwrap();
            let view = JobView::new(&record, now).with_details(&record);
            let line = serde_json::to_string(&view).unwrap();
            assert!(!line.contains('\n'));
            let names: BTreeMap<String, &RawValue> = serde_json::from_str(&line).unwrap();
            assert!(names.keys().all(|name| JobView::FIELDS.contains(&name.as_str())), "{line}");
            let read = super::job(&line, || client.make_id()).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!((&read.payload, read.id), (&job.payload, job.id), "{line}");
            assert_eq!(read.run_at, When::At(job.run_at.resolve(now)), "{line}");
            assert_eq!((read.group, read.concurrency, read.unique), (job.group, job.concurrency, job.unique));
            assert_eq!((read.expires_at, read.tags, read.headers), (job.expires_at, job.tags, job.headers));
            if job.options.lease.is_some() {
                assert_eq!(read.options, job.options, "{line}");
            }
        }
    }

    #[tokio::test]
    async fn json_over_many_lines_becomes_one() {
        let client = client();
        let payload = Payload::json("{\n  \"a\": \"b\\nc\"\r\n}\n");
        let id = client.push(vec![NewJob::new(client.make_id(), "k", "q", payload)]).await.unwrap()[0]
            .id()
            .unwrap();
        let record = client.get(id).await.unwrap().unwrap();
        let line = serde_json::to_string(&JobView::new(&record, record.created_at)).unwrap();
        assert!(line.contains(r#""payload":{   "a": "b\nc"  }"#), "{line}");
    }
}
