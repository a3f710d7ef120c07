//! What one job at a time writes to the file's log, in pages: facts that no other load of the machine changes.
//!
//! `cargo test -p punctual --test sqlite pages -- --nocapture` prints them.

use punctual::job::Concurrency;

use super::*;

/// Lives that are counted, after as many that are not. All fit into the log before a checkpoint.
const LIVES: u64 = 30;
/// Groups and concurrency keys over which jobs are spread.
const SPREAD: u64 = 10;
/// In the log, the head of the file, and that of each page, in bytes.
const LOG_HEAD: u64 = 32;
const FRAME_HEAD: u64 = 24;

/// Jobs of a kind, and the most pages that an enqueue, and an ack with the reserve of the next job, may write in the mean. They stand a
/// twentieth above what was counted. A change that writes less lowers them.
type Row = (&'static str, Keep, fn(NewJob, u64) -> NewJob, [f64; 2]);

fn rows() -> [Row; 7] {
    fn sized(job: NewJob, bytes: usize) -> NewJob {
        NewJob { payload: Payload::json(vec![b'1'; bytes]), ..job }
    }
    [
        ("plain", Keep::NOTHING, |job, _| job, [5.25, 8.4]),
        ("default retention", Keep::SHORT, |job, _| job, [5.4, 9.45]),
        (
            "unique key",
            Keep::NOTHING,
            |job, n| NewJob { unique: Some(Unique::key(n.to_string())), ..job },
            [6.3, 9.45],
        ),
        (
            "concurrency key",
            Keep::NOTHING,
            |job, n| {
                let concurrency = Concurrency { key: (n % SPREAD).to_string(), limit: 1 };
                NewJob { concurrency: Some(concurrency), ..job }
            },
            [5.25, 9.45],
        ),
        (
            "group",
            Keep::NOTHING,
            |job, n| NewJob { group: Some((n % SPREAD).to_string()), ..job },
            [8.4, 12.6],
        ),
        ("1 KiB", Keep::NOTHING, |job, _| sized(job, 1 << 10), [5.25, 8.4]),
        ("100 KiB", Keep::NOTHING, |job, _| sized(job, 100 << 10), [32.6, 10.5]),
    ]
}

/// How many pages are in the log.
fn pages(folder: &Folder) -> f64 {
    let page: u32 = folder.connect().query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    let log = std::fs::metadata(folder.path().with_file_name("jobs.db-wal")).unwrap().len();
    (log.saturating_sub(LOG_HEAD) / (u64::from(page) + FRAME_HEAD)) as f64
}

#[tokio::test]
async fn a_life_writes_no_more_pages_than_it_did() {
    let clock = ManualClock::new(Timestamp::from_ms(1_800_000_000_000).unwrap());
    let mut wrong = Vec::new();
    for (name, done, with, most) in rows() {
        let folder = Folder::new();
        let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
        let store = SqliteStore::open(folder.path(), options).unwrap();
        let settings = QueueSettings { done, ..QueueSettings::default() };
        store.queue("mail", &QueueOp::Set(Box::new(settings))).await.unwrap();
        let (mut written, mut ended) = ([0.0; 2], Vec::new());
        for n in 1..=2 * LIVES {
            let id = IdMaker::default().make(1_800_000_000_000 + n, 0, n);
            let job = with(NewJob::new(id, "email.send", "mail", Payload::json(vec![b'1'; 200])), n);
            let call = CallId { instance: 1, number: n };
            let before = pages(&folder);
            assert!(store.enqueue(call, &[job]).await.unwrap()[0].is_new());
            let between = pages(&folder);
            let (_, batch) = store.settle(&ended, Some(&Reserve { call, ..want(1) })).await.unwrap();
            let lease = batch.unwrap().jobs[0].lease;
            ended = vec![Settlement { lease, verdict: Verdict::Ack }];
            if LIVES < n {
                written[0] += between - before;
                written[1] += pages(&folder) - between;
            }
            clock.advance(Duration::from_millis(10));
        }
        let mean = written.map(|pages| pages / LIVES as f64);
        println!("{name:20} enqueue {:5.2}   ack + reserve {:5.2} pages", mean[0], mean[1]);
        if (0..2).any(|i| mean[i] < 1.0 || most[i] < mean[i]) {
            wrong.push(format!("{name}: {mean:?} pages, at most {most:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}
