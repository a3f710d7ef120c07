use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", unique = "key")]
struct SendEmail {}

fn main() {}
