use punctual::{Client, Ctx, Job, Worker};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send")]
struct SendEmail {}

async fn handle(_job: SendEmail, _ctx: Ctx) -> u8 {
    7
}

fn main() {
    let _ = |client: &Client| Worker::new(client).handle(handle);
}
