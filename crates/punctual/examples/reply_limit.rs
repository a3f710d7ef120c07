//! A limit for each user: exactly ten replies in any window, however many calls come at once.
//!
//! A limit made at home adds each call to a sorted set, removes what is older than the window, counts, and compares. Other calls
//! run between these four commands, so of 64 calls at once too many pass. Refused calls count as well, so a user who keeps trying
//! stays blocked. Here a `RateLimiter` does it in one step of the store, by the store's clock. A refused caller is told how long
//! to wait.
//!
//! ```sh
//! cargo run -p punctual --example reply_limit
//! cargo run -p punctual --example reply_limit --features redis -- --store redis://localhost
//! ```

#[path = "support/place.rs"]
mod place;

use std::time::{Duration, Instant};

use punctual::{
    Client,
    toolkit::{Allowance, RateLimiter},
};
use tokio::{task::JoinSet, time::sleep};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Calls that may pass in a window, for each user.
const REPLIES: u32 = 10;
/// A window that does not end while this program runs.
const HOUR: Duration = Duration::from_hours(1);
/// A short window, so that calls pass again while this program runs.
const WINDOW: Duration = Duration::from_secs(1);
/// Between two calls of a user who does not wait as long as told.
const PAUSE: Duration = Duration::from_millis(20);

/// Makes so many calls at once, over the connections of four processes. Returns how many passed.
async fn at_once(calls: u32, processes: &[Client], user: &'static str) -> Result<u32, Failure> {
    let mut asked = JoinSet::new();
    for process in processes.iter().cycle().take(calls as usize) {
        let limiter = process.rate_limiter("reply", REPLIES, HOUR);
        asked.spawn(async move { limiter.is_allowed(user).await });
    }
    let mut passed = 0;
    while let Some(answer) = asked.join_next().await {
        passed += u32::from(answer??);
    }
    println!("{user}: {passed} of {calls} calls at once pass");
    Ok(passed)
}

/// Asks until so many calls have passed, and does not care what it is told; answers when each of these began and ended.
async fn impatiently(
    calls: usize,
    limiter: &RateLimiter,
    user: &str,
) -> Result<Vec<(Instant, Instant)>, Failure> {
    let (mut passed, mut refused) = (Vec::new(), 0);
    while passed.len() < calls {
        let begin = Instant::now();
        match limiter.check(user, 1).await? {
            Allowance::Allowed => passed.push((begin, Instant::now())),
            Allowance::RetryAfter(wait) => {
                if passed.len() == REPLIES as usize && refused == 0 {
                    println!("{user}: {REPLIES} have passed; told to come back in {} ms", wait.as_millis());
                }
                refused += 1;
                sleep(PAUSE).await;
            }
        }
    }
    println!("{user}: {calls} have passed, and {refused} calls between them were refused");
    Ok(passed)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let place = place::Place::named()?;
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(Client::connect(&place.url).await?);
    }

    let ana = at_once(64, &processes, "ana").await?;
    let bo = at_once(4, &processes, "bo").await?;
    let again = at_once(64, &processes, "ana").await?;

    // A window that slides past: no ten calls and one more lie within one, wherever it begins.
    let limiter = processes[0].rate_limiter("comment", REPLIES, WINDOW);
    let passed = impatiently(2 * REPLIES as usize + 5, &limiter, "cy").await?;
    let apart = passed.iter().zip(&passed[REPLIES as usize..]).map(|((begin, _), (_, end))| *end - *begin);
    let shortest = apart.min().ok_or("enough have passed")?;

    assert_eq!((ana, bo, again), (REPLIES, 4, 0), "ten for each user, and not one more");
    // The store reckons in whole milliseconds.
    assert!(WINDOW <= shortest + Duration::from_millis(1), "at most ten in any window");
    println!(
        "checked  {ana} of 128 calls of one user pass, {bo} of 4 of another, never more than {REPLIES} in a window"
    );
    Ok(())
}
