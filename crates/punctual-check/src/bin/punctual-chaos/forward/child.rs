//! The processes of the drill: a worker that forwards, and the worker of the queue beside it.

use std::{fs, io::Write as _, sync::Arc, time::Duration};

use punctual::{Client, Ctx, JobRecord, Worker, store::url::connect};
use punctual_forward::Target;

use super::{LOCAL, QUEUE, wall_us};
use crate::drill::Outcome;

/// Forwards until it is killed.
pub(crate) async fn forward(store: &str, proc: &str, to: &str, slots: usize, lease: Duration) -> Outcome<()> {
    let client = Client::new(connect(store).await?);
    let target = Target::parse(to)?;
    // Webhooks of the drill are on this machine.
    let target = if to.starts_with("http") { target.allow_private() } else { target };
    let forwarder = target.forwarder()?;
    let worker = Worker::new(&client).name(proc).queue(QUEUE).slots(slots).lease(lease);
    worker.handle_raw(forwarder.handler()).run().await?;
    Ok(())
}

/// Works on the queue beside it until it is told to end, and notes how late each job starts.
pub(crate) async fn work_locally(store: &str, notes: &str, proc: &str) -> Outcome<()> {
    let notes = Arc::new(fs::File::options().append(true).create(true).open(notes)?);
    let client = Client::new(connect(store).await?);
    let handle = move |job: JobRecord, _: Ctx| {
        let notes = Arc::clone(&notes);
        async move {
            let (due, now) = (job.run_at.as_ms() * 1_000, wall_us());
            // One write, so that no line is half there.
            (&*notes).write_all(format!("{due} {}\n", now.saturating_sub(due)).as_bytes())?;
            Ok::<_, std::io::Error>(())
        }
    };
    Worker::new(&client).name(proc).queue(LOCAL).slots(8).handle_raw(handle).run().await?;
    Ok(())
}
