//! Somebody empties the server's scripts and kills its connections, all the time: nobody who hands jobs over or works
//! hears of it.

use std::time::Duration;

use super::{console::Console, drill::Drill, server::Server};

/// Between two faults.
const BETWEEN: Duration = Duration::from_millis(100);
const FAULTS: u64 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_and_killed_connections_lose_nothing() {
    let server = Server::start(&[]);
    let url = server.url();
    let mut drill = Drill::begin("flush and kill", &url).await;
    drill.work(2, &url).await;
    drill.produce(2, &url).await;
    let mut console = Console::open(&server.socket()).unwrap();
    let mut killed = 0;
    for _ in 0..FAULTS {
        tokio::time::sleep(BETWEEN).await;
        console.say(&["SCRIPT", "FLUSH"]).unwrap();
        killed += console.say(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap().parse::<u64>().unwrap();
    }
    assert!(FAULTS < killed, "of two workers and two producers only {killed} connections were met");
    drill.rest(FAULTS + killed).await;
}
