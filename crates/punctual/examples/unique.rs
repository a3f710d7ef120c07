//! At most one job holds a unique key within its kind, queue, group and concurrency key: how long the key is held, and what a
//! second enqueue does.
//!
//! `cargo run -p punctual --example unique`

use std::time::Duration;

use punctual::{Client, Job, OnConflict, Unique, store::Enqueued};

#[derive(Job, serde::Serialize, serde::Deserialize)]
#[job(kind = "email.send", queue = "mail", unique = "key")]
struct SendEmail {
    to: String,
    text: String,
}

impl SendEmail {
    /// One welcome per address, for as long as the first one waits or runs.
    fn key(&self) -> String {
        format!("welcome:{}", self.to)
    }
}

fn email(text: &str) -> SendEmail {
    SendEmail { to: "ana@example.com".to_owned(), text: text.to_owned() }
}

#[tokio::main]
async fn main() -> punctual::Result<()> {
    let client = Client::connect("memory:").await?;

    // The type's own key, and its default rule: the first one stays.
    let first = client.enqueue(email("hello")).delay(Duration::from_mins(1)).await?;
    let second = client.enqueue(email("hello again")).await?;
    println!("{}, then {}", first.name(), second.name());
    assert!(matches!(second, Enqueued::Duplicate(existing) if Some(existing.id) == first.id()));

    // A call may choose otherwise: here the last one counts.
    let key = Unique::key("welcome:ana@example.com").on_conflict(OnConflict::Replace);
    let third = client.enqueue(email("hello, corrected")).unique(key).await?;
    println!("then {}", third.name());
    assert!(matches!(third, Enqueued::Replaced { id, .. } if Some(id) == first.id()));

    // A window: at most one a day, whatever becomes of it.
    let daily = || Unique::key("digest:ana").window(Duration::from_hours(24));
    assert!(client.enqueue(email("digest")).unique(daily()).await?.is_new());
    assert!(!client.enqueue(email("digest")).unique(daily()).await?.is_new());

    // One waiting at most, and the key is free from the start on: what changes while a job runs is not lost.
    assert!(client.enqueue(email("index")).rerun("index:42").await?.is_new());
    assert!(!client.enqueue(email("index")).rerun("index:42").await?.is_new());

    println!("{} jobs wait", client.count(Some("mail")).await?.waiting);
    Ok(())
}
