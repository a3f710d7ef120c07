use punctual::{Client, Ctx, Job, Worker};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send")]
struct SendEmail {}

async fn handle(_job: SendEmail, _ctx: Ctx) {
    let shared = std::rc::Rc::new(1);
    std::future::ready(()).await;
    drop(shared);
}

fn main() {
    let _ = |client: &Client| Worker::new(client).handle(handle);
}
