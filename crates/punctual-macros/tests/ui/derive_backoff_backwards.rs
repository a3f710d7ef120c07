use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", backoff = "exp 5s..1s")]
struct SendEmail {}

fn main() {}
