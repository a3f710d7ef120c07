//! The hottest posts of the hour: likes are added, the top is told with its scores, and what was an hour ago does not count.
//!
//! A ranking made at home is a sorted set per hour: it forgets all at the full hour, or it is a set per minute, which
//! somebody has to merge, and to clean up, and to take a removed post out of. Here a `Leaderboard` merges the last sixty
//! minutes in one step: minutes that have gone cold are taken off before anything is told, and a post that is removed leaves
//! all of them.
//!
//! An hour passes in no time: the program advances the store's clock. (A program of yours calls `Client::connect`.)
//!
//! ```sh
//! cargo run -p punctual --example hottest_posts
//! cargo run -p punctual --example hottest_posts --features redis -- --store redis://localhost
//! ```

#[path = "support/place.rs"]
mod place;

use std::{sync::Arc, time::Duration};

#[cfg(feature = "redis")]
use punctual::store::redis::RedisStore;
use punctual::{
    Client,
    store::{
        Store,
        clock::{Clock, ManualClock},
        sqlite::{SqliteOptions, SqliteStore},
    },
    toolkit::{Bucket, Leaderboard},
};
use tokio::task::spawn_blocking;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const MINUTE: Duration = Duration::from_mins(1);

/// Opens a store whose time is that of `clock`.
async fn open(url: &str, clock: Clock) -> Result<Client, Failure> {
    let store: Arc<dyn Store> = match url.strip_prefix("sqlite:") {
        Some(file) => {
            let (file, options) = (file.to_owned(), SqliteOptions { clock, ..SqliteOptions::default() });
            Arc::new(spawn_blocking(move || SqliteStore::open(file, options)).await??)
        }
        #[cfg(feature = "redis")]
        None => Arc::new(RedisStore::open(url, clock).await?),
        #[cfg(not(feature = "redis"))]
        None => return Err("built without Redis: add --features redis".into()),
    };
    Ok(Client::new(store))
}

/// Prints the first three, and answers them.
async fn top(hottest: &Leaderboard, when: &str) -> Result<Vec<(String, i64)>, Failure> {
    println!("{when}");
    let top = hottest.top(3).await?;
    for post in &top {
        println!("  {}. {:<6} {:>3}", post.rank, post.member, post.score);
    }
    Ok(top.into_iter().map(|post| (post.member, post.score)).collect())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let place = place::Place::named()?;
    let clock = ManualClock::new(Clock::System.now());
    let client = open(&place.url, Clock::Manual(clock.clone())).await?;
    let hottest = client.leaderboard("posts").last(60, Bucket::Minute).at_most(1_000);

    // Likes of one minute may come in one step.
    hottest.add_all([("cats", 40), ("dogs", 25), ("spam", 90), ("tea", 5)]).await?;
    clock.advance(30 * MINUTE);
    hottest.add("dogs", 20).await?;
    hottest.add("tea", 10).await?;
    let half = top(&hottest, "after half an hour").await?;

    let removed = hottest.remove("spam").await?;
    let moderated = top(&hottest, "spam is removed").await?;

    // The first half hour goes cold.
    clock.advance(30 * MINUTE);
    hottest.add("tea", 1).await?;
    let hour = top(&hottest, "after an hour: what was liked first does not count any more").await?;
    let tea = hottest.standing("tea").await?.ok_or("it is on the board")?;

    clock.advance(61 * MINUTE);
    let nobody = top(&hottest, "after an hour without likes").await?;

    let named = |posts: &[(&str, i64)]| {
        posts.iter().map(|&(post, score)| (post.to_owned(), score)).collect::<Vec<_>>()
    };
    assert_eq!(half, named(&[("spam", 90), ("dogs", 45), ("cats", 40)]));
    assert_eq!((removed, moderated), (Some(90), named(&[("dogs", 45), ("cats", 40), ("tea", 15)])));
    assert_eq!(hour, named(&[("dogs", 20), ("tea", 11)]), "of the first minute nothing is left");
    assert_eq!((tea.rank, tea.score), (2, 11));
    assert_eq!((nobody, hottest.size().await?), (vec![], 0));
    println!("checked  four rankings: minutes merged, a post removed, cold minutes dropped, nothing kept");
    Ok(())
}
