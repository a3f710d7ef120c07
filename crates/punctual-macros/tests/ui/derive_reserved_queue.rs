use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", queue = "$mail")]
struct SendEmail {}

fn main() {}
