use punctual::{Client, Job, Worker};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send")]
struct SendEmail {}

async fn handle(_job: SendEmail, _ctx: u32) {}

fn main() {
    let _ = |client: &Client| Worker::new(client).handle(handle);
}
