use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", max_attempts = 0)]
struct SendEmail {}

fn main() {}
