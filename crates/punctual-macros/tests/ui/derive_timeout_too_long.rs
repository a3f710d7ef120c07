use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", timeout = "8d")]
struct SendEmail {}

fn main() {}
