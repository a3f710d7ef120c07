//! S3 from end to end: calls fail before, or, worse, after they took effect, and still every job is there once, runs once
//! and ends once.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
};

use punctual::{
    Client, Ctx, JobId, JobRecord, NewJob, Payload, Worker,
    store::{Store, clock::Clock, faulty::FaultyStore, memory::MemoryStore},
};
use punctual_check::{History, Options, Recorder, RecordingStore, TAG_DONE, Verdict, Word, event, judge};
use tokio_util::sync::CancellationToken;

/// A store, the same with faults, and the history of the latter.
struct Drill {
    sound: Arc<dyn Store>,
    faulty: Arc<dyn Store>,
    recorder: Arc<Recorder>,
    dir: tempfile::TempDir,
}

impl Drill {
    /// Of the calls to `sound`, one in `one_in` fails.
    fn new(sound: Arc<dyn Store>, seed: u64, one_in: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Arc::new(Recorder::create(&dir.path().join("a.ndjson"), "a", 100, 0).unwrap());
        let faulty = Arc::new(FaultyStore::seeded(Arc::clone(&sound), seed, one_in));
        let faulty = Arc::new(RecordingStore::new(faulty, Arc::clone(&recorder)));
        Self { sound, faulty, recorder, dir }
    }

    /// Reads what the store holds, and judges all that happened.
    async fn verdict(&self) -> Verdict {
        RecordingStore::new(Arc::clone(&self.sound), Arc::clone(&self.recorder)).dump().await.unwrap();
        let history = History::read(&[Path::to_owned(self.dir.path())]).unwrap();
        judge(&history, Options::default())
    }
}

/// Every store that is built in, empty; files are in the folder.
fn stores(dir: &Path) -> Vec<(&'static str, Arc<dyn Store>)> {
    vec![
        ("memory", Arc::new(MemoryStore::new(Clock::System))),
        #[cfg(feature = "sqlite")]
        ("sqlite", sqlite(&dir.join("jobs.db"))),
    ]
}

#[cfg(feature = "sqlite")]
fn sqlite(file: &Path) -> Arc<dyn Store> {
    use punctual::store::sqlite::{SqliteOptions, SqliteStore};
    Arc::new(SqliteStore::open(file, SqliteOptions::default()).unwrap())
}

fn job(n: u32) -> NewJob {
    let id = JobId::derived("q", None, &format!("job {n}"));
    let mut job = NewJob::new(id, "k", "q", Payload::json(n.to_string()));
    job.tags = vec![TAG_DONE.to_owned()];
    job
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_is_there_once_runs_once_and_ends_once() {
    const JOBS: u32 = 1_500;
    let dir = tempfile::tempdir().unwrap();
    for (name, store) in stores(dir.path()) {
        let drill = Drill::new(store, 7, 4);
        let client = Client::new(Arc::clone(&drill.faulty));
        // Twice, as a producer does that was killed and began again.
        for _ in 0..2 {
            client.push((0..JOBS).map(job).collect()).await.unwrap();
        }
        let counts = drill.sound.count(None).await.unwrap();
        assert_eq!((counts.waiting, counts.total()), (JOBS.into(), JOBS.into()), "{name}");

        let ran: Arc<Mutex<HashMap<JobId, u32>>> = Arc::default();
        let all_ran = CancellationToken::new();
        let (recorder, log, stop) = (Arc::clone(&drill.recorder), Arc::clone(&ran), all_ran.clone());
        let report = Worker::new(&client)
            .queue("q")
            .slots(100)
            .handle_raw(move |job: JobRecord, ctx: Ctx| {
                let sum = event::Hex::fingerprint(&job.payload.bytes);
                recorder.note(event::What::Start { id: job.id, fence: ctx.fence(), sum });
                let mut ran = log.lock().unwrap();
                *ran.entry(job.id).or_default() += 1;
                if ran.len() == JOBS as usize {
                    stop.cancel();
                }
                async {}
            })
            .run_until(all_ran)
            .await
            .unwrap();

        assert_eq!(ran.lock().unwrap().values().copied().max(), Some(1), "{name}: a job ran twice");
        let counts = drill.sound.count(None).await.unwrap();
        assert_eq!((counts.done, counts.total()), (JOBS.into(), JOBS.into()), "{name}: {report:?}");
        let verdict = drill.verdict().await;
        assert_eq!(verdict.verdict, Word::Valid, "{name}: {verdict}");
        assert_eq!((verdict.attempt, verdict.duplicated.explained), (JOBS.into(), 0), "{name}: {verdict}");
    }
}

#[tokio::test]
async fn a_push_under_lost_answers_inserts_each_job_once() {
    for seed in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        for (name, store) in stores(dir.path()) {
            let drill = Drill::new(store, seed, 2);
            let client = Client::new(Arc::clone(&drill.faulty));
            let answers = client.push((0..300).map(job).collect()).await.unwrap();
            for (n, answer) in (0..).zip(&answers) {
                assert_eq!(answer.id(), Some(job(n).id), "{name}, seed {seed}");
            }
            let counts = drill.sound.count(None).await.unwrap();
            assert_eq!((answers.len(), counts.total()), (300, 300), "{name}, seed {seed}");
        }
    }
}
