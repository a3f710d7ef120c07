use punctual::{Client, Ctx, Job, Worker};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send")]
struct SendEmail {}

struct App {}

async fn handle(_job: SendEmail, _ctx: Ctx<App>) {}

fn main() {
    let _ = |client: &Client| Worker::new(client).handle(handle);
}
