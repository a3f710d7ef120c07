use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", timeout = "30 seconds")]
struct SendEmail {}

fn main() {}
