//! Names of keys: those of an import's own state, and the sources of a layout.

use std::collections::BTreeSet;

use super::{
    layout::{Body, Keys, Layout},
    server::Server,
};
use crate::errors::{Failure, Result};

/// The prefix of an import's own keys. No pattern of sources matches them.
const OWN: &str = "punctual:import:";
/// Of them those that say where an import is. What a key is stands before the name of its source, which may end in anything.
const STATE: &str = "punctual:import:state:";
/// Keys that one step of a search looks at.
const SEARCH_KEYS: usize = 1_000;
/// Most sources of one import.
const SOURCES_MAX: usize = 10_000;
/// Most of them where payloads stand apart: of each entry all other sources are asked whether they have it, too.
const SHARING_MAX: usize = 1_024;

/// A sorted set or a list to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) key: String,
    pub(super) is_list: bool,
    /// What distinguishes the source: the queue of a list.
    pub(super) name: String,
}

impl Source {
    /// Who imports, which run it is and how much is taken off: a hash.
    pub(super) fn state(&self) -> String {
        format!("{STATE}{}", self.key)
    }

    /// A list that was moved aside.
    pub(super) fn aside(&self) -> String {
        format!("{OWN}aside:{}", self.key)
    }

    /// Entries of a sorted set that are on their way.
    pub(super) fn open(&self) -> String {
        format!("{OWN}open:{}", self.key)
    }

    /// Elements that became no jobs.
    pub(super) fn refused(&self) -> String {
        format!("{OWN}refused:{}", self.key)
    }

    /// Ids whose payloads go at the end.
    pub(super) fn ids(&self) -> String {
        format!("{OWN}ids:{}", self.key)
    }
}

/// Finds the sources that are there, or that an import was stopped at; those that are due later first.
pub(super) async fn find(server: &Server, layout: &Layout) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    if let Some(sorted) = &layout.sorted {
        found.extend(find_of(server, &sorted.keys, false).await?);
        if SHARING_MAX < found.len() && !matches!(sorted.body, Body::Member) {
            return Err(too_many(SHARING_MAX));
        }
    }
    if let Some(lists) = &layout.lists {
        found.extend(find_of(server, &lists.keys, true).await?);
        if let Some(backup) = &lists.backup {
            check_type(server, backup, &["none", "hash", "set", "zset", "list"], "what was popped").await?;
        }
        if let Some(context) = &lists.context {
            check_type(server, context, &["none", "hash"], "a hash of messages").await?;
        }
        if let Keys::One(key) = &lists.keys
            && !found.iter().any(|source| source.is_list)
        {
            // Of a list that is empty there may be something that was popped, or messages that could not go.
            let source = source_of(&lists.keys, key.clone(), true);
            let (popped, ids) = (lists.backup.clone(), lists.context.as_ref().map(|_| source.ids()));
            for key in popped.into_iter().chain(ids) {
                if server.exists(&key).await? {
                    found.push(source);
                    break;
                }
            }
        }
    }
    Ok(found)
}

fn too_many(most: usize) -> Failure {
    Failure::invalid(format!("the pattern matches more than {most} keys"))
        .hint("use a narrower pattern, and import one part after the other")
}

async fn find_of(server: &Server, keys: &Keys, is_list: bool) -> Result<Vec<Source>> {
    let mut names = BTreeSet::new();
    match keys {
        Keys::One(key) => _ = names.insert(key.clone()),
        Keys::Numbered(key, shards) => names.extend((0..*shards).map(|n| format!("{key}:{n}"))),
        Keys::Pattern(pattern) => {
            names = search(server, pattern).await?;
            // Of a list that was moved aside nothing may stand in its place.
            let stopped = search(server, &format!("{STATE}{pattern}")).await?;
            names.extend(stopped.iter().filter_map(|key| key.strip_prefix(STATE)).map(str::to_owned));
            names.retain(|key| !key.starts_with(OWN));
        }
    }
    if SOURCES_MAX < names.len() {
        return Err(too_many(SOURCES_MAX));
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
    let (before, behind) = keys.around();
    let name = key.strip_prefix(before).unwrap_or(&key);
    let name = name.strip_suffix(behind).unwrap_or(name).to_owned();
    Source { key, is_list, name }
}

/// Whether the key is there; refuses one of another type before anything is taken.
async fn check_type(server: &Server, key: &str, wanted: &[&str], what: &str) -> Result<bool> {
    let found: String = server.say(redis::cmd("TYPE").arg(key)).await?;
    if wanted.contains(&found.as_str()) {
        return Ok(found != "none");
    }
    let found = if found == "zset" { "sorted set".to_owned() } else { found };
    Err(Failure::invalid(format!("key {key:?} is a {found}, not {what} (WRONGTYPE)"))
        .why("nothing was imported")
        .hint("name another key, or use a narrower pattern"))
}

/// All keys that match, by SCAN.
async fn search(server: &Server, pattern: &str) -> Result<BTreeSet<String>> {
    let (mut cursor, mut found) = (0_u64, BTreeSet::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SEARCH_KEYS);
        let (next, keys): (u64, Vec<Vec<u8>>) = server.say(&scan).await?;
        for key in keys {
            found.insert(String::from_utf8(key).map_err(|e| {
                Failure::invalid("a key that matches the pattern is not UTF-8").why(e.to_string())
            })?);
        }
        if SOURCES_MAX < found.len() {
            return Err(too_many(SOURCES_MAX));
        }
        if next == 0 {
            return Ok(found);
        }
        cursor = next;
    }
}
