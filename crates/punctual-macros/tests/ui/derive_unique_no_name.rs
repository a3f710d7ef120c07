use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", unique = "to + template")]
struct SendEmail {}

fn main() {}
