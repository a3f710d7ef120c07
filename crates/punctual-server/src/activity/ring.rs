//! The pages of the activity log: documents with entries in order. Only the last page grows. When it is full it is closed, and
//! the next one begins. The oldest pages are removed.

use punctual::{
    Client, Error, ErrorKind, Result,
    store::{Doc, DocOp, DocReply, Precondition},
};
use serde::{Deserialize, Serialize};

use super::Entry;

/// The prefix of the keys of their documents.
pub(crate) const PREFIX: &str = "activity/";
/// The most pages. With the next one, the oldest is removed.
pub(crate) const PAGES_MAX: u64 = 64;
/// The most bytes of a page.
pub(crate) const PAGE_BYTES_MAX: usize = 48 * 1024;
/// The most attempts of one append, each of which other processes can make fail.
const ATTEMPTS: usize = 100;

/// A page.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Page {
    /// Whether it is full. Nobody adds to it then.
    closed: bool,
    entries: Vec<Entry>,
}

/// A page as the store has it.
#[derive(Debug)]
struct Kept {
    number: u64,
    version: Option<u64>,
    page: Page,
}

/// Entries, the newest first.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) entries: Vec<Entry>,
    /// Where to continue; `None` at the end.
    pub(crate) next: Option<String>,
}

/// Returns the key of a page. Keys of later pages come before those of earlier ones, so that the last page is the first document.
fn key(number: u64) -> String {
    format!("{PREFIX}{:016x}", u64::MAX - number)
}

impl Kept {
    /// Reads a page. One that cannot be read, such as one of a newer punctual, is closed and empty.
    fn read(doc: &Doc) -> Option<Self> {
        let digits = doc.key.strip_prefix(PREFIX)?;
        let number = u64::MAX - u64::from_str_radix(digits, 16).ok()?;
        let page = serde_json::from_slice(&doc.value).unwrap_or_else(|error| {
            tracing::warn!(target: "punctual", %error, key = doc.key, "a page of the activity log cannot be read");
            Page { closed: true, entries: Vec::new() }
        });
        Some(Self { number, version: Some(doc.version), page })
    }

    const fn first() -> Self {
        Self { number: 1, version: None, page: Page { closed: false, entries: Vec::new() } }
    }

    /// Adds entries until the page is full. Returns how many.
    fn fill(&mut self, entries: &[Entry]) -> Result<usize> {
        let mut bytes = value(&self.page)?.len();
        for (n, entry) in entries.iter().enumerate() {
            bytes += serde_json::to_vec(entry).map_err(unwritable)?.len() + 1;
            // An entry is far smaller than a page, so an empty one takes it.
            if PAGE_BYTES_MAX < bytes {
                return Ok(n);
            }
            self.page.entries.push(entry.clone());
        }
        Ok(entries.len())
    }

    /// Writes the page, if nobody else has changed it. Returns whether it was written.
    async fn put(&self, client: &Client) -> Result<bool> {
        let precondition = self.version.map_or(Precondition::IfAbsent, Precondition::IfVersion);
        let put = DocOp::Put { key: key(self.number), precondition, value: value(&self.page)? };
        let mut reply = client.store().doc(&put).await;
        if reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::UnknownOutcome) {
            // It may have been written. Entries must not be there twice, and the same call is safe.
            reply = client.store().doc(&put).await;
        }
        match reply? {
            DocReply::Is(_) => Ok(true),
            DocReply::Conflict(_) => Ok(false),
            DocReply::Page { .. } => Err(unexpected()),
        }
    }
}

fn value(page: &Page) -> Result<Vec<u8>> {
    serde_json::to_vec(page).map_err(unwritable)
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Corrupt, "could not encode the activity log").with_source(error)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store gave an answer of another form")
}

/// Returns the first page after a key: the last of the ring if there is no key.
async fn page(client: &Client, after: Option<String>) -> Result<Option<Kept>> {
    let list = DocOp::List { prefix: PREFIX.to_owned(), after, limit: 1 };
    match client.store().doc(&list).await? {
        DocReply::Page { docs, .. } => Ok(docs.first().and_then(Kept::read)),
        DocReply::Is(_) | DocReply::Conflict(_) => Err(unexpected()),
    }
}

/// Appends entries in order. Takes those that are written out of the list, also if it fails.
pub(super) async fn append(client: &Client, entries: &mut Vec<Entry>) -> Result<()> {
    for _ in 0..ATTEMPTS {
        if entries.is_empty() {
            return Ok(());
        }
        let mut last = page(client, None).await?.unwrap_or_else(Kept::first);
        if last.page.closed {
            last = Kept { number: last.number + 1, ..Kept::first() };
        }
        let n = last.fill(entries)?;
        last.page.closed = n < entries.len();
        if last.put(client).await? {
            entries.drain(..n);
            if last.version.is_none() {
                trim(client, last.number).await?;
            }
        }
    }
    Err(Error::new(ErrorKind::Conflict, "the activity log changed at each attempt"))
}

/// Removes the page that is too old. The one before it, too, if a process died before it could.
async fn trim(client: &Client, last: u64) -> Result<()> {
    for old in [PAGES_MAX, PAGES_MAX + 1].iter().filter_map(|by| last.checked_sub(*by)) {
        let remove = DocOp::Remove { key: key(old), precondition: Precondition::Always };
        client.store().doc(&remove).await?;
    }
    Ok(())
}

/// Returns entries from a place on: `PAGE.N`, before the entry `N` of a page.
pub(super) async fn read(client: &Client, cursor: Option<&str>, limit: usize) -> Result<Shown> {
    let (mut from, mut before) = match cursor {
        None => (None, None),
        Some(cursor) => {
            let (page, n) = place(cursor).ok_or_else(|| {
                Error::invalid("could not read the cursor of the activity log")
                    .with_hint("use the cursor that the page before this one returned")
            })?;
            (Some(page), Some(n))
        }
    };
    let mut shown = Shown::default();
    // One more than there are pages, since one can begin meanwhile.
    for _ in 0..=PAGES_MAX {
        // A key before that of the page, whose successor is the page itself.
        let Some(kept) = page(client, from.map(|page| key(page + 1))).await? else { return Ok(shown) };
        // The page of the cursor may have been removed.
        let n = before.take().filter(|_| from == Some(kept.number));
        let (entries, end) = (kept.page.entries, n.unwrap_or(usize::MAX));
        let end = end.min(entries.len());
        let begin = end.saturating_sub(limit - shown.entries.len());
        shown.entries.extend(entries[begin..end].iter().rev().cloned());
        let next = if 0 < begin {
            Some((kept.number, begin))
        } else {
            (1 < kept.number).then(|| (kept.number - 1, usize::MAX))
        };
        let Some((page, n)) = next else { return Ok(shown) };
        if shown.entries.len() == limit {
            shown.next = Some(format!("{page}.{n}"));
            return Ok(shown);
        }
        (from, before) = (Some(page), Some(n));
    }
    Ok(shown)
}

fn place(text: &str) -> Option<(u64, usize)> {
    let (page, n) = text.split_once('.')?;
    // The page after it must have a number, too.
    let page = page.parse().ok().filter(|page: &u64| *page < u64::MAX)?;
    Some((page, n.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use punctual::testing::{FaultyStore, TestQueue};

    use super::*;
    use crate::activity::{Actor, Via};

    fn entry(writer: u64, n: u64, bytes: usize) -> Entry {
        let actor = Actor { name: format!("w{writer}"), token: None };
        let entry = Entry::new(actor, Via::Api, "pause").reason(&"x".repeat(bytes));
        Entry { done: n, ..entry }
    }

    async fn docs(client: &Client) -> Vec<Doc> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let list = DocOp::List { prefix: String::new(), after, limit: 1_000 };
            let DocReply::Page { docs, more } = client.store().doc(&list).await.unwrap() else {
                panic!("a list is answered with a page")
            };
            after = docs.last().filter(|_| more).map(|doc| doc.key.clone());
            all.extend(docs);
            if after.is_none() {
                return all;
            }
        }
    }

    /// Reads the whole log, in pages of a number of entries.
    async fn all(client: &Client, limit: usize) -> Vec<Entry> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let shown = read(client, cursor.as_deref(), limit).await.unwrap();
            assert!(shown.entries.len() == limit || shown.next.is_none());
            all.extend(shown.entries);
            cursor = shown.next;
            if cursor.is_none() {
                return all;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn writers_at_the_same_time_append_each_entry_once_and_in_order() {
        let t = TestQueue::new();
        let write = |writer| {
            // Answers are lost now and then, after the call took effect or before.
            let store = FaultyStore::seeded(Arc::clone(t.client.store()), writer, 9);
            let client = Client::new(Arc::new(store));
            tokio::spawn(async move {
                let mut waiting = Vec::new();
                for n in 0..200 {
                    waiting.push(entry(writer, n, 300));
                    // It goes on with what was not written.
                    while append(&client, &mut waiting).await.is_err() {
                        tokio::task::yield_now().await;
                    }
                    assert!(waiting.is_empty());
                    tokio::task::yield_now().await;
                }
            })
        };
        let writers: Vec<_> = (0..4).map(write).collect();
        for writer in writers {
            writer.await.unwrap();
        }
        let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for entry in all(&t.client, 7).await {
            found.entry(entry.actor.name).or_default().push(entry.done);
        }
        assert_eq!(found.len(), 4);
        for (writer, mut numbers) in found {
            // An answer that was lost twice can leave an entry twice, and never in another order.
            numbers.dedup();
            assert_eq!(numbers, (0..200).rev().collect::<Vec<_>>(), "{writer}");
        }
    }

    #[tokio::test]
    async fn the_ring_keeps_the_newest_entries_within_its_bounds() {
        let t = TestQueue::new();
        for batch in 0..90 {
            let mut entries: Vec<Entry> = (0..100).map(|n| entry(0, batch * 100 + n, 512)).collect();
            append(&t.client, &mut entries).await.unwrap();
        }
        let docs = docs(&t.client).await;
        assert_eq!(docs.len() as u64, PAGES_MAX);
        assert!(docs.iter().all(|doc| doc.value.len() <= PAGE_BYTES_MAX), "a page is too large");
        let kept: Vec<u64> = all(&t.client, 1_000).await.iter().map(|entry| entry.done).collect();
        assert!(3_000 < kept.len() && kept.len() < 9_000, "{}", kept.len());
        assert_eq!(kept, (0..9_000).rev().take(kept.len()).collect::<Vec<_>>());
        // A cursor of a page that was removed is at the end.
        let shown = read(&t.client, Some("1.5"), 10).await.unwrap();
        assert_eq!((shown.entries.len(), shown.next), (0, None));
        for cursor in ["", "x", "1", "1.x", "-1.2", "18446744073709551615.1"] {
            let error = read(&t.client, Some(cursor), 10).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{cursor}");
        }
    }
}
