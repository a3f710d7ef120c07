//! What tools keep goes with what is in it, by the server's clock; and many callers of several processes count as one.

use std::{sync::Arc, time::Duration};

use punctual::{
    Client, Timestamp,
    store::{
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
    toolkit::Bucket,
};

use super::{console::Console, open, server::Server};

/// What `PTTL` answers for a key that does not expire, and for one that is not there.
const FOR_EVER: i64 = -1;

fn pttl(server: &Server, key: &str) -> i64 {
    // The names have a NUL, which no argument of a program can have.
    let said = Console::open(&server.socket()).unwrap().say(&["PTTL", key]).unwrap();
    said.trim().trim_start_matches(':').parse().unwrap_or_else(|_| panic!("{key}: {said}"))
}

#[tokio::test]
async fn what_tools_keep_expires() {
    let server = Server::start(&[]);
    let url = server.root_url();
    let client = Client::new(open(&url).await);
    let key = |name: &str| super::key(&url, name);
    let minute = Duration::from_mins(1);
    assert!(client.rate_limiter("l", 5, minute).is_allowed("ana").await.unwrap());
    assert!(client.rate_limiter("l", 1_000, minute).is_allowed("ben").await.unwrap());
    assert!(client.rate_limiter("l", 5, minute).evenly(5).is_allowed("ana").await.unwrap());
    client.leaderboard("b").last(2, Bucket::Hour).add("cats", 1).await.unwrap();
    let lock = client.lock("k");
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    for (name, at_most) in [
        ("log:l\0ana", 60_001),
        ("log:l\0ben", 60_001),
        ("gcra:l\0ana", 12_002),
        ("board:b\0h2", 7_200_001),
        ("board:b\0h2\0", 7_200_001),
        ("w:$lock/k", 60_000),
    ] {
        let left = pttl(&server, &key(name));
        assert!(FOR_EVER < left && left <= at_most, "{name:?}: {left}");
    }
    // None of it is a stranger to whoever looks after the store.
    assert_eq!(client.audit(false, |_| ()).await.unwrap().findings, []);
    assert!(client.rate_limiter("s", 1, Duration::from_millis(1)).is_allowed("ana").await.unwrap());
    while 0 < pttl(&server, &key("log:s\0ana")) {
        tokio::task::yield_now().await;
    }
    assert!(client.rate_limiter("s", 1, Duration::from_millis(1)).is_allowed("ana").await.unwrap());
}

/// A sum of nothing has no key. What is subtracted from it later makes one, which ends with the others.
#[tokio::test]
async fn a_sum_that_comes_back_expires() {
    let server = Server::start(&[]);
    let url = server.root_url();
    let clock = ManualClock::new(Timestamp::from_ms(1_795_000_000_000).unwrap());
    let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
    let client = Client::new(Arc::new(store));
    let board = client.leaderboard("b").last(3, Bucket::Hour);
    for (score, hours) in [(-5, 1), (5, 2)] {
        board.add("a", score).await.unwrap();
        clock.advance(Duration::from_hours(hours));
    }
    assert_eq!(board.top(10).await.unwrap()[0].score, 5);
    for name in ["board:b\0h3", "board:b\0h3\0"] {
        assert!(FOR_EVER < pttl(&server, &super::key(&url, name)), "{name:?}");
    }
}

/// The same within a day, by the server's clock: sum and slot lose their keys, and get new ones.
#[tokio::test]
async fn a_sum_that_is_made_anew_expires() {
    let server = Server::start(&[]);
    let url = server.root_url();
    let board = Client::new(open(&url).await).leaderboard("b").last(2, Bucket::Day);
    for score in [5, -5, 5] {
        board.add("a", score).await.unwrap();
    }
    // One of the slots has the day of today.
    let left = ["", "\0", "\x000", "\x001"]
        .map(|end| pttl(&server, &super::key(&url, &format!("board:b\0d2{end}"))));
    assert!(
        !left.contains(&FOR_EVER) && left.iter().filter(|left| FOR_EVER < **left).count() == 3,
        "{left:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_callers_get_what_one_would() {
    let url = Server::shared().url();
    let clients = [Client::new(open(&url).await), Client::new(open(&url).await)];
    let hour = Duration::from_hours(1);
    let callers = (0..64).map(|caller| {
        let client = clients[caller % 2].clone();
        tokio::spawn(async move {
            let (log, even) =
                (client.rate_limiter("l", 500, hour), client.rate_limiter("l", 500, hour).evenly(500));
            let mut passed = [0, 0];
            for _ in 0..20 {
                passed[0] += u32::from(log.is_allowed("ana").await.unwrap());
                passed[1] += u32::from(even.is_allowed("ana").await.unwrap());
                client.leaderboard("b").add("cats", 1).await.unwrap();
            }
            passed
        })
    });
    let mut sums = [0, 0];
    for caller in callers.collect::<Vec<_>>() {
        let passed = caller.await.unwrap();
        sums = [sums[0] + passed[0], sums[1] + passed[1]];
    }
    // An even one goes on every 7.2 s.
    assert!(sums[0] == 500 && (500..510).contains(&sums[1]), "{sums:?}");
    assert_eq!(clients[0].leaderboard("b").standing("cats").await.unwrap().unwrap().score, 64 * 20);
}

/// An add to a board that another program overwrote fails before it writes anything.
#[tokio::test]
async fn an_add_to_a_torn_board_changes_nothing() {
    let server = Server::start(&[]);
    let url = server.root_url();
    let board = Client::new(open(&url).await).leaderboard("b").last(2, Bucket::Day);
    board.add("a", 1).await.unwrap();
    let mut console = Console::open(&server.socket()).unwrap();
    let key = |end: &str| super::key(&url, &format!("board:b\0d2{end}"));
    console.say(&["SET", &key(""), "torn"]).unwrap();
    board.add("a", 1).await.unwrap_err();
    // One of the slots has the day of today.
    let [first, second] = ["\x000", "\x001"].map(|end| console.say(&["ZSCORE", &key(end), "a"]).unwrap());
    assert!([&first, &second].iter().any(|said| said.trim().ends_with('1')), "{first:?} {second:?}");
}
