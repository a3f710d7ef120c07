#![deny(unused_must_use)]

use punctual::{Client, Job};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send")]
struct SendEmail {}

fn main() {
    let _ = |client: &Client| {
        client.enqueue(SendEmail {});
        client.enqueue_many([SendEmail {}]);
    };
}
