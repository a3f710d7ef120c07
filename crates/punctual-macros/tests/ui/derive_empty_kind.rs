use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "")]
struct SendEmail {}

fn main() {}
