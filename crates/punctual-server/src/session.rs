//! Sessions of browsers: what a browser has after a person has shown a token. Each is a document of the store, `session/TOKEN/ID`.
//!
//! The cookie of a browser reaches every server on the same host, whatever its port is, and its files keep it. So it is not the token: it ends at the
//! logout, after [`LASTS`], and with its token. All servers on one store know the same sessions.
//!
//! A session is `ps_` + id of its token + `_` + id + `_` + secret. The store keeps only the SHA-256 of the secret.

use std::time::Duration;

use punctual::{
    Client, Error, ErrorKind, Result, Timestamp,
    limits::BATCH_MAX,
    store::{Doc, DocOp, DocReply, Precondition},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::token::{self, RANDOM_BYTES, Token, hex, is_id, unhex};

/// The prefix of the keys of their documents.
pub(crate) const PREFIX: &str = "session/";
/// How long a session lasts at most.
pub(crate) const LASTS: Duration = Duration::from_hours(7 * 24);
/// Most sessions of one token. The oldest one ends when another begins.
pub(crate) const SESSIONS_MAX: usize = 20;
/// What each session begins with.
const MARK: &str = "ps_";
/// Random bytes of its id.
const ID_BYTES: usize = 4;

/// The document of a session.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    sha256: String,
    /// When its token was made, so that another token with the same id is not taken for it.
    token_created_at_ms: u64,
    created_at_ms: u64,
    expires_at_ms: u64,
}

/// A session as a browser shows it. Nothing is known of it but its form.
struct Given<'a> {
    token: &'a str,
    id: &'a str,
    secret: Vec<u8>,
}

impl<'a> Given<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (token, rest) = text.strip_prefix(MARK)?.split_once('_')?;
        let (id, secret) = rest.split_once('_')?;
        (is_id(token) && is_id(id)).then_some(())?;
        Some(Self { token, id, secret: unhex(secret)? })
    }

    fn key(&self) -> String {
        format!("{PREFIX}{}/{}", self.token, self.id)
    }

    /// Its document; `None` if there is none, or its secret is another.
    async fn find(&self, client: &Client) -> Result<Option<(Doc, Stored)>> {
        let DocReply::Is(doc) = client.store().doc(&DocOp::Get { key: self.key() }).await? else {
            return Err(unexpected());
        };
        // One that cannot be read ends like one that is over: its person logs in again.
        let read = |doc: Doc| Some((serde_json::from_slice::<Stored>(&doc.value).ok()?, doc));
        let Some((stored, doc)) = doc.and_then(read) else { return Ok(None) };
        let digest = unhex(&stored.sha256).unwrap_or_default();
        let is_right: bool = Sha256::digest(&self.secret)[..].ct_eq(&digest).into();
        Ok(is_right.then_some((doc, stored)))
    }
}

/// Returns whether a text has the form of a session.
pub(crate) fn is_one(text: &str) -> bool {
    Given::parse(text).is_some()
}

/// Begins a session of a token, and returns its text.
///
/// # Errors
/// Any error of the store.
pub(crate) async fn begin(client: &Client, token: &Token, random: [u8; RANDOM_BYTES]) -> Result<String> {
    let now = client.store().now().await?;
    make_room(client, token, now).await?;
    let (id, secret) = random.split_at(ID_BYTES);
    let (id, secret) = (hex(id), hex(secret));
    let text = format!("{MARK}{}_{id}_{secret}", token.id);
    let given = Given::parse(&text).ok_or_else(unexpected)?;
    let stored = Stored {
        sha256: hex(&Sha256::digest(&given.secret)),
        token_created_at_ms: token.created_at.as_ms(),
        created_at_ms: now.as_ms(),
        expires_at_ms: now.after(LASTS).as_ms(),
    };
    let value = serde_json::to_vec(&stored)
        .map_err(|e| Error::invalid("could not write the session").with_source(e))?;
    let put = DocOp::Put { key: given.key(), precondition: Precondition::IfAbsent, value };
    match client.store().doc(&put).await? {
        DocReply::Is(Some(_)) => Ok(text),
        _ => Err(Error::new(ErrorKind::Conflict, "another session has the same id").with_hint("try again")),
    }
}

/// Removes the sessions of a token that are over, and the oldest ones if there are too many.
async fn make_room(client: &Client, token: &Token, now: Timestamp) -> Result<()> {
    let mut kept = Vec::new();
    for doc in all(client, &token.id).await? {
        match serde_json::from_slice::<Stored>(&doc.value) {
            Ok(stored) if now.as_ms() < stored.expires_at_ms => kept.push((stored.created_at_ms, doc.key)),
            _ => remove(client, doc.key).await?,
        }
    }
    kept.sort_unstable();
    let over = (kept.len() + 1).saturating_sub(SESSIONS_MAX);
    for (_, key) in kept.into_iter().take(over) {
        remove(client, key).await?;
    }
    Ok(())
}

/// Returns the token of a session, and when the session ends; `None` if there is no such session any more.
pub(crate) async fn find(client: &Client, text: &str) -> Result<Option<(Token, Timestamp)>> {
    let Some(given) = Given::parse(text) else { return Ok(None) };
    let Some((_, stored)) = given.find(client).await? else { return Ok(None) };
    let Some(token) = token::stored(client, given.token).await? else { return Ok(None) };
    let is_its = token.created_at.as_ms() == stored.token_created_at_ms;
    Ok(is_its.then_some((token, Timestamp::saturating_from_ms(stored.expires_at_ms))))
}

/// Ends a session. One that is not there has ended.
pub(crate) async fn end(client: &Client, text: &str) -> Result<()> {
    let Some(given) = Given::parse(text) else { return Ok(()) };
    match given.find(client).await? {
        Some((doc, _)) => remove(client, doc.key).await,
        None => Ok(()),
    }
}

/// Ends all sessions of a token.
pub(crate) async fn end_all(client: &Client, token: &str) -> Result<()> {
    for doc in all(client, token).await? {
        remove(client, doc.key).await?;
    }
    Ok(())
}

async fn all(client: &Client, token: &str) -> Result<Vec<Doc>> {
    let list = DocOp::List { prefix: format!("{PREFIX}{token}/"), after: None, limit: BATCH_MAX };
    match client.store().doc(&list).await? {
        DocReply::Page { docs, .. } => Ok(docs),
        DocReply::Is(_) | DocReply::Conflict(_) => Err(unexpected()),
    }
}

async fn remove(client: &Client, key: String) -> Result<()> {
    client.store().doc(&DocOp::Remove { key, precondition: Precondition::Always }).await?;
    Ok(())
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a session")
}
