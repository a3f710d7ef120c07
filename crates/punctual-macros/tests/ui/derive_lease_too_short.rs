use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", lease = "999ms")]
struct SendEmail {}

fn main() {}
