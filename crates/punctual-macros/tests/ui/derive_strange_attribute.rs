use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", colour = "red")]
struct SendEmail {}

fn main() {}
