use punctual::Job;

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(queue = "mail")]
struct SendEmail {}

fn main() {}
