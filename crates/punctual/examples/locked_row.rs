//! An update of a row that somebody has locked waits for its turn, and is not lost.
//!
//! A queue made at home asks whether the row is locked, and if it is, puts the update aside and tries again in a minute. That
//! leaves open in what order updates come then, what becomes of them when the process ends meanwhile, and who sees to it that
//! no two of them write at once. Here the row is named as the job's *concurrency key*: the store starts one job of a key at a
//! time, in order, and lets all others pass. Where many updates may be written at once, those that wait become one job
//! (`rerun`, `merge`).
//!
//! ```sh
//! cargo run -p punctual --example locked_row
//! cargo run -p punctual --example locked_row --features redis -- --store redis://localhost
//! ```

#[path = "support/place.rs"]
mod place;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use punctual::{
    Client, Ctx, Job, State, Worker,
    job::Filter,
    store::{Enqueued, List},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long to wait for the end of a job, at most.
const PATIENCE: Duration = Duration::from_mins(1);
/// Updates that come for the busy row while it is locked.
const BUSY: u32 = 50;

/// Somebody has the row open until it is saved.
#[derive(Job, Serialize, Deserialize)]
#[job(kind = "row.edit", queue = "rows")]
struct Edit {
    row: u32,
}

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "row.update", queue = "rows")]
struct Update {
    row: u32,
    values: Vec<u32>,
}

/// All that a row's jobs have in common.
fn lock(row: u32) -> String {
    format!("row:{row}")
}

struct App {
    table: Mutex<BTreeMap<u32, Vec<u32>>>,
    /// Tells that an editor has opened its row.
    opened: mpsc::UnboundedSender<u32>,
    /// Lets the editor save it.
    save: Notify,
}

impl App {
    fn read(&self, row: u32) -> Vec<u32> {
        self.table.lock().expect("nobody panics with it").get(&row).cloned().unwrap_or_default()
    }

    fn write(&self, row: u32, values: Vec<u32>) {
        self.table.lock().expect("nobody panics with it").insert(row, values);
    }
}

async fn edit(job: Edit, ctx: Ctx<Arc<App>>) -> Result<(), Failure> {
    println!("row {:2}: opened by an editor", job.row);
    ctx.state().opened.send(job.row)?;
    ctx.state().save.notified().await;
    println!("row {:2}: saved", job.row);
    Ok(())
}

/// Reads, thinks, writes: of two that did so at once, one would be lost.
async fn update(job: Update, ctx: Ctx<Arc<App>>) {
    let mut values = ctx.state().read(job.row);
    tokio::time::sleep(Duration::from_millis(5)).await;
    println!("row {:2}: {} written behind {}", job.row, job.values.len(), values.len());
    values.extend(job.values);
    ctx.state().write(job.row, values);
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let place = place::Place::named()?;
    let client = Client::connect(&place.url).await?;
    let (opened, mut is_open) = mpsc::unbounded_channel();
    let app = Arc::new(App { table: Mutex::default(), opened, save: Notify::new() });
    let stop = CancellationToken::new();
    let worker = Worker::new(&client).queue("rows").state(Arc::clone(&app)).handle(edit).handle(update);
    let working = tokio::spawn(worker.run_until(stop.clone()));

    // While row 42 is locked, updates of it come, and one of another row.
    client.enqueue(Edit { row: 42 }).concurrency_key(lock(42)).await?;
    is_open.recv().await;
    let mut held_up = Vec::new();
    for value in 1..=5 {
        let update = Update { row: 42, values: vec![value] };
        held_up.push(client.enqueue(update).concurrency_key(lock(42)).await?);
    }
    let other = client.enqueue(Update { row: 7, values: vec![1] }).concurrency_key(lock(7)).await?;
    done(&client, other).await?;
    let blocked = List { filter: Filter::parse("queue:rows state:blocked")?, after: None, limit: 100 };
    let blocked = client.list(&blocked).await?.jobs.len();
    println!("row 42: {blocked} updates wait; row 7 did not have to");
    app.save.notify_one();
    for update in held_up {
        done(&client, update).await?;
    }

    // A busy row: one job runs, and one waits, which is given all that comes meanwhile.
    client.enqueue(Edit { row: 9 }).concurrency_key(lock(9)).await?;
    is_open.recv().await;
    let mut next = client.enqueue(Update { row: 9, values: vec![1] }).rerun(lock(9)).await?;
    for value in 2..=BUSY {
        let merge =
            |waits: Update, new: Update| Update { values: [waits.values, new.values].concat(), ..new };
        next = client.enqueue(Update { row: 9, values: vec![value] }).rerun(lock(9)).merge(merge).await?;
    }
    app.save.notify_one();
    done(&client, next).await?;

    stop.cancel();
    let report = working.await??;
    assert_eq!(blocked, 5, "all updates of a locked row wait");
    assert_eq!(app.read(42), [1, 2, 3, 4, 5], "in order, and none is lost");
    assert_eq!(app.read(7), [1]);
    assert_eq!(app.read(9), (1..=BUSY).collect::<Vec<_>>(), "none is lost, and none is there twice");
    assert_eq!(report.done, 2 + 5 + 1 + 1, "the updates of the busy row were one job");
    println!("checked  5 of 5 updates in order, {BUSY} of {BUSY} in one job, none lost");
    Ok(())
}

/// Waits until a job is done.
async fn done(client: &Client, job: Enqueued) -> Result<(), Failure> {
    let id = job.id().ok_or("the queue is full")?;
    let job = client.finished(id, PATIENCE).await?.ok_or("its record is gone")?;
    assert_eq!(job.state, State::Done);
    Ok(())
}
