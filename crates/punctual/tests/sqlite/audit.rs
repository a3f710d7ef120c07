//! An audit of a store that is at work: what it corrects is right whatever happens between its slices.

use super::*;

/// A store with thousands of rows in every table, its traffic, and the slices of its audits.
struct Busy {
    folder: Folder,
    store: SqliteStore,
    made: u64,
}

impl Busy {
    async fn new() -> Self {
        let folder = Folder::new();
        let store = folder.open();
        let mut busy = Self { folder, store, made: 0 };
        let batch: Vec<NewJob> = (0..1_000).map(|n| derived_job(&n.to_string())).collect();
        let answers = busy.store.enqueue(call(1), &batch).await.unwrap();
        assert!(answers.iter().all(Enqueued::is_new));
        busy.end(800, |n| if n % 2 == 0 { Verdict::Ack } else { Verdict::Dead { error: "no".to_owned() } })
            .await;
        // What ended is forgotten but for its id, most of it.
        for id in batch[..500].iter().map(|job| job.id) {
            let _ = busy.store.act(&[id.into()], &Action::Delete).await.unwrap();
        }
        for _ in 0..3 {
            busy.enqueue(1_000).await;
        }
        busy.end(600, |_| Verdict::Retry { at: When::In(Duration::from_hours(1)), error: "no".to_owned() })
            .await;
        busy
    }

    async fn enqueue(&mut self, n: u64) {
        let jobs: Vec<NewJob> = (self.made..self.made + n).map(new_job).collect();
        self.made += n;
        let answers = self.store.enqueue(call(1), &jobs).await.unwrap();
        assert!(answers.iter().all(Enqueued::is_new));
    }

    async fn end(&self, n: usize, verdict: impl Fn(usize) -> Verdict) {
        let runs = self.store.reserve(&want(n)).await.unwrap().jobs;
        assert_eq!(runs.len(), n);
        let batch: Vec<Settlement> =
            (0..n).zip(&runs).map(|(n, run)| Settlement { lease: run.lease, verdict: verdict(n) }).collect();
        let _ = self.store.settle(&batch, None).await.unwrap();
    }

    /// Something of everything.
    async fn traffic(&mut self) {
        self.enqueue(9).await;
        self.end(6, |n| match n {
            0..3 => Verdict::Ack,
            3 | 4 => Verdict::Retry { at: When::In(Duration::from_hours(1)), error: "no".to_owned() },
            _ => Verdict::Cancel { reason: None },
        })
        .await;
        assert_eq!(self.store.reserve(&want(2)).await.unwrap().jobs.len(), 2);
    }

    /// Counters wrong in every way.
    fn plant_counters(&self) {
        let wrong = "UPDATE punctual_queue SET waiting = waiting + 7, retrying = retrying - 3, running = running + 2,
            bytes = bytes - 50, done = done + 5, done_bytes = done_bytes + 9, dead = dead - 1,
            dead_bytes = dead_bytes + 1, cancelled = cancelled + 4, cancelled_bytes = 77, remembered = remembered - 8";
        assert_eq!(self.folder.connect().execute(wrong, []).unwrap(), 1);
    }

    /// Asserts that the kept counters are what the rows say.
    fn assert_exact(&self) {
        let counters =
            "SELECT waiting, retrying, running, bytes, done, done_bytes, dead, dead_bytes, cancelled,
            cancelled_bytes, remembered FROM punctual_queue";
        let rows = "SELECT (SELECT count(*) FROM punctual_due),
            (SELECT count(*) FROM punctual_due JOIN punctual_past USING (id) WHERE attempt > 1),
            (SELECT count(*) FROM punctual_lease),
            (SELECT sum(length(payload)) FROM punctual_job WHERE id NOT IN (SELECT id FROM punctual_ended)),
            count(*) FILTER (WHERE st = 2), total(bytes) FILTER (WHERE st = 2), count(*) FILTER (WHERE st = 3),
            total(bytes) FILTER (WHERE st = 3), count(*) FILTER (WHERE st = 4), total(bytes) FILTER (WHERE st = 4),
            (SELECT count(*) FROM punctual_memory) FROM punctual_ended";
        let conn = self.folder.connect();
        let read = |query| -> Vec<f64> {
            conn.query_row(query, [], |row| {
                (0..11).map(|at| row.get::<_, Value>(at)).collect::<Result<Vec<_>, _>>()
            })
            .unwrap()
            .into_iter()
            .map(|value| match value {
                Value::Integer(n) => n as f64,
                Value::Real(n) => n,
                other => panic!("{other:?} is no number"),
            })
            .collect()
        };
        assert_eq!(read(counters), read(rows));
    }

    fn rows(&self) -> u64 {
        let tables = "SELECT (SELECT count(*) FROM punctual_job) + (SELECT count(*) FROM punctual_due)
            + (SELECT count(*) FROM punctual_lease) + (SELECT count(*) FROM punctual_ended)
            + (SELECT count(*) FROM punctual_past) + (SELECT count(*) FROM punctual_memory)";
        self.folder.connect().query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap().cast_unsigned()
    }
}

/// One audit, slice by slice.
#[derive(Default)]
struct Slices {
    from: AuditCursor,
    checked: u64,
    calls: u64,
    findings: Vec<Finding>,
}

impl Slices {
    /// Whether there is more.
    async fn go_on(&mut self, store: &SqliteStore) -> bool {
        let slice = store.audit(Audit { repair: true, from: self.from.clone() }).await.unwrap();
        assert!(slice.checked <= 1_000, "{}", slice.checked);
        self.calls += 1;
        self.checked += slice.checked;
        self.findings.extend(slice.findings);
        let more = slice.next.is_some();
        self.from = slice.next.unwrap_or_default();
        more
    }

    /// Goes on until it counts: each of the rows is looked at once before.
    async fn begin_to_count(&mut self, busy: &Busy) {
        let rows = busy.rows();
        while self.checked <= rows {
            assert!(self.go_on(&busy.store).await);
        }
    }
}

/// S13: a store of many slices is mended while others enqueue, reserve and settle between any two of them, and no slice
/// looks at more than 1,000 rows.
#[tokio::test]
async fn a_store_at_work_is_mended_in_slices() {
    let mut busy = Busy::new().await;
    busy.plant_counters();
    let stray =
        |n| format!("WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT {n}) INSERT INTO ");
    let id = "unhex(printf('%032x', i))";
    let conn = busy.folder.connect();
    conn.execute_batch(&format!(
        "{}punctual_due SELECT 1, 1, 9999999999999, {id} FROM n;
        {}punctual_lease (id, q, until) SELECT {id}, 1, 9999999999999 FROM n;
        {}punctual_ended SELECT {id}, 1, 2, 9999999999999, 5, NULL FROM n;
        {}punctual_past (id, attempt) SELECT {id}, 3 FROM n;",
        stray(1_500),
        stray(40),
        stray(1_100),
        stray(30),
    ))
    .unwrap();
    let rows = busy.rows();
    let mut audit = Slices::default();
    while audit.go_on(&busy.store).await {
        busy.traffic().await;
    }
    busy.assert_exact();
    assert!(audit.findings.iter().all(|finding| finding.repaired));
    let of = |what| audit.findings.iter().filter(|finding| finding.what == what).count();
    assert_eq!((of("no_record"), of("counter"), audit.findings.len()), (2_670, 1, 2_671));
    // Everything was looked at twice, as rows and to be counted, the strays once.
    let grown = 60 * audit.calls;
    assert!(
        (2 * rows - 2_670 - grown..2 * rows + grown).contains(&audit.checked),
        "{} of {rows}",
        audit.checked
    );
    assert_eq!(findings(&busy.store, false).await, []);
}

/// S13: of two audits that find the same, one corrects it; the other one counts anew.
#[tokio::test]
async fn two_audits_at_once_correct_once() {
    let mut busy = Busy::new().await;
    busy.plant_counters();
    let (mut first, mut second) = (Slices::default(), Slices::default());
    first.begin_to_count(&busy).await;
    second.begin_to_count(&busy).await;
    for audit in [&mut first, &mut second] {
        while audit.go_on(&busy.store).await {
            busy.traffic().await;
        }
    }
    assert_eq!((first.findings.len(), second.findings.len()), (1, 0));
    busy.assert_exact();
}

/// S13: a count goes on in another handle, from its beginning.
#[tokio::test]
async fn a_count_goes_on_in_another_handle() {
    let mut busy = Busy::new().await;
    busy.plant_counters();
    let mut audit = Slices::default();
    audit.begin_to_count(&busy).await;
    let other = busy.folder.open();
    while audit.go_on(&other).await {
        busy.traffic().await;
    }
    assert_eq!(audit.findings.len(), 1);
    busy.assert_exact();
}

/// S13: what audits keep is bounded, however many are begun and given up.
#[tokio::test]
async fn audits_that_were_given_up_are_waited_for() {
    let busy = Busy::new().await;
    for _ in 0..4 {
        Slices::default().begin_to_count(&busy).await;
    }
    let mut from = AuditCursor::default();
    let refused = loop {
        match busy.store.audit(Audit { repair: false, from }).await {
            Ok(slice) => from = slice.next.expect("it is refused before its end"),
            Err(error) => break error,
        }
    };
    assert_eq!((refused.kind(), refused.hint().is_some()), (ErrorKind::Unavailable, true));
}
