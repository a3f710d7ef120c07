//! A job for tests.

use std::thread;

use punctual::{Client, Job, JobRecord};
use serde::{Deserialize, Serialize};

#[derive(Job, Serialize, Deserialize)]
#[job(kind = "email.send", queue = "mail")]
struct Mail {
    to: String,
}

/// Makes a job of kind `email.send` in the queue `mail`, as it is forwarded.
pub(crate) fn job() -> JobRecord {
    // On its own thread, because the test may run on a runtime.
    let made = thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect("memory:").await.unwrap();
            let job = client.enqueue(Mail { to: "ana@example.com".to_owned() }).await.unwrap();
            client.get(job.id().unwrap()).await.unwrap().unwrap()
        })
    });
    made.join().unwrap()
}
