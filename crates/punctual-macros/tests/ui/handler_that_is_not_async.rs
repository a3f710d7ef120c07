use punctual::{Client, Ctx, Job, Worker};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send")]
struct SendEmail {}

fn handle(_job: SendEmail, _ctx: Ctx) {}

fn main() {
    let _ = |client: &Client| Worker::new(client).handle(handle);
}
