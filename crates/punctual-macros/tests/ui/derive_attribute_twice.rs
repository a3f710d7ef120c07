use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send")]
#[job(kind = "email.send2")]
struct SendEmail {}

fn main() {}
