use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", max_atempts = 3)]
struct SendEmail {}

fn main() {}
