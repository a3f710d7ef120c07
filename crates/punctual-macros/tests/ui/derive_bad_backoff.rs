use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", backoff = "often 5s")]
struct SendEmail {}

fn main() {}
