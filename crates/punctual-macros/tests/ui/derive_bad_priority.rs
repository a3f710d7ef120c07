use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", priority = "urgent")]
struct SendEmail {}

fn main() {}
