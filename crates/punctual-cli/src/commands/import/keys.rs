//! Names of keys: where an import keeps its own state, and the sources that a layout means.

use std::collections::BTreeSet;

use super::{
    layout::{Keys, Layout},
    server::Server,
};
use crate::errors::{Failure, Result};

/// What all keys of an import begin with; no pattern of sources takes them for one.
const OWN: &str = "punctual:import:";
/// Keys that one step of a search looks at.
const SEARCH_KEYS: usize = 1_000;
/// Most sources of one import.
const SOURCES_MAX: usize = 10_000;

/// A sorted set or a list to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) key: String,
    pub(super) is_list: bool,
    /// What tells it apart from its like: the queue of a list.
    pub(super) name: String,
}

impl Source {
    /// Who imports, which run it is and how much is taken off: a hash.
    pub(super) fn state(&self) -> String {
        format!("{OWN}{}", self.key)
    }

    /// A list that was moved aside.
    pub(super) fn aside(&self) -> String {
        format!("{OWN}{}:aside", self.key)
    }

    /// Entries of a sorted set that are on their way.
    pub(super) fn open(&self) -> String {
        format!("{OWN}{}:open", self.key)
    }

    /// Elements that became no jobs.
    pub(super) fn refused(&self) -> String {
        format!("{OWN}{}:refused", self.key)
    }

    /// Ids whose payloads go at the end.
    pub(super) fn ids(&self) -> String {
        format!("{OWN}{}:ids", self.key)
    }
}

/// Finds the sources that are there, or that an import was stopped at; those that are due later first.
pub(super) async fn find(server: &Server, layout: &Layout) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    if let Some(sorted) = &layout.sorted {
        found.extend(find_of(server, &sorted.keys, false).await?);
    }
    if let Some(lists) = &layout.lists {
        for source in find_of(server, &lists.keys, true).await? {
            found.push(source);
        }
        // Of a list that is empty there may be something that was popped.
        if let (Some(backup), Keys::One(key)) = (&lists.backup, &lists.keys) {
            check_type(server, backup, &["none", "hash", "set", "zset", "list"], "what was popped").await?;
            if found.is_empty() && server.exists(backup).await? {
                found.push(source_of(&lists.keys, key.clone(), true));
            }
        }
        if let Some(context) = &lists.context {
            check_type(server, context, &["none", "hash"], "a hash of messages").await?;
        }
    }
    Ok(found)
}

async fn find_of(server: &Server, keys: &Keys, is_list: bool) -> Result<Vec<Source>> {
    let mut names = BTreeSet::new();
    match keys {
        Keys::One(key) => _ = names.insert(key.clone()),
        Keys::Numbered(key, shards) => names.extend((0..*shards).map(|n| format!("{key}:{n}"))),
        Keys::Pattern(pattern) => {
            names.extend(search(server, pattern).await?.into_iter().filter(|key| !key.starts_with(OWN)));
            // Of a list that was moved aside nothing may stand in its place.
            let stopped = search(server, &format!("{OWN}{pattern}")).await?;
            let stopped = stopped.iter().filter_map(|key| key.strip_prefix(OWN));
            let ends =
                |key: &str| [":aside", ":open", ":refused", ":ids"].iter().any(|end| key.ends_with(end));
            names.extend(stopped.filter(|key| !ends(key)).map(str::to_owned));
        }
    }
    if SOURCES_MAX < names.len() {
        return Err(Failure::invalid(format!("the pattern means over {SOURCES_MAX} keys"))
            .hint("narrow it, and import one part after the other"));
    }
    let mut sources = Vec::new();
    for key in names {
        let (wanted, what) = if is_list { ("list", "a list") } else { ("zset", "a sorted set") };
        let is_there = check_type(server, &key, &["none", wanted], what).await?;
        let source = source_of(keys, key, is_list);
        if is_there || server.exists(&source.state()).await? {
            sources.push(source);
        }
    }
    Ok(sources)
}

fn source_of(keys: &Keys, key: String, is_list: bool) -> Source {
    let name = key.strip_prefix(keys.prefix()).unwrap_or(&key).to_owned();
    Source { key, is_list, name }
}

/// Whether the key is there; refuses one of another type before anything is taken.
async fn check_type(server: &Server, key: &str, wanted: &[&str], what: &str) -> Result<bool> {
    let found: String = server.say(redis::cmd("TYPE").arg(key)).await?;
    if wanted.contains(&found.as_str()) {
        return Ok(found != "none");
    }
    let found = if found == "zset" { "sorted set".to_owned() } else { found };
    Err(Failure::invalid(format!("key {key:?} is a {found}, where {what} is meant (WRONGTYPE)"))
        .hint("name another key, or narrow the pattern; nothing was taken"))
}

/// All keys that match, by SCAN.
async fn search(server: &Server, pattern: &str) -> Result<Vec<String>> {
    let (mut cursor, mut found) = (0_u64, Vec::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SEARCH_KEYS);
        let (next, keys): (u64, Vec<Vec<u8>>) = server.say(&scan).await?;
        for key in keys {
            found.push(String::from_utf8(key).map_err(|e| {
                Failure::invalid("a key that matches the pattern is no text").why(e.to_string())
            })?);
        }
        if next == 0 {
            return Ok(found);
        }
        cursor = next;
    }
}
