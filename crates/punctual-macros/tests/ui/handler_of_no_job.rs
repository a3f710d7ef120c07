use punctual::{Client, Ctx, Worker};

struct Plain {}

async fn handle(_job: Plain, _ctx: Ctx) {}

fn main() {
    let _ = |client: &Client| Worker::new(client).handle(handle);
}
