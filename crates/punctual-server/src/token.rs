//! Tokens: who may ask a server for what. Each is a document of the store, `token/ID`.
//!
//! A token is `pt_` + id + `_` + secret. The id has 8 characters and is public: lists and logs name it. The secret is
//! 32 random bytes. The store keeps only the SHA-256 of the secret. A fast hash is enough, since nobody can try 2²⁵⁶
//! secrets. Both parts are lower-case hex: a double click selects the whole token, and no character of it needs a quote
//! in a shell, an address or a header.
//!
//! A token that [signs](NewToken::signs) has a secret access key for the SQS protocol, too. It follows from the hash that the store
//! keeps, so a reader of the store can sign as the holder of such a token.
//!
//! All of this is read and written as ordinary documents. A program that offers the raw verb `doc` of a store to others
//! must refuse keys that begin with [`PREFIX`] to all but admins of the whole store, or its callers can grant themselves
//! any right. See [`is_reserved`](crate::is_reserved).

use std::{fmt, time::Duration};

use punctual::{
    Client, Error, ErrorKind, Result, Timestamp,
    limits::{BATCH_MAX, NAME_BYTES_MAX},
    store::{Doc, DocOp, DocReply, Precondition},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::session;

/// The prefix of the keys of their documents.
pub const PREFIX: &str = "token/";
/// Most tokens of a store. Two processes that make tokens at the same time can exceed it by one each.
pub const TOKENS_MAX: usize = 1_000;
/// Most queues of one token.
pub const QUEUES_MAX: usize = 100;
/// Longest name of a token, in bytes.
pub const NAME_BYTES: usize = 100;
/// Random bytes of a token: 4 of its id, 32 of its secret.
pub const RANDOM_BYTES: usize = ID_BYTES + SECRET_BYTES;

const ID_BYTES: usize = 4;
const SECRET_BYTES: usize = 32;
/// What each token begins with, so that scanners of source code find tokens that were committed.
const MARK: &str = "pt_";

/// A SHA-256.
pub(crate) type Digest = [u8; 32];

/// What the holder of a token may do. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look at jobs, queues and figures.
    Read,
    /// Also enqueue, reserve, settle and change jobs, and pause queues.
    Operate,
    /// Also change settings, schedules and topics, and delete queues.
    Admin,
}

impl Role {
    /// All roles, the lowest first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Admin];

    /// Returns the name, as command lines and documents write it.
    ///
    /// ```
    /// assert_eq!(punctual_server::token::Role::Operate.name(), "operate");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the holder of a token sees payloads, results and headers of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Payloads {
    /// They are shown.
    Shown,
    /// They are hidden.
    Hidden,
}

/// A token to make.
///
/// ```
/// # use punctual_server::token::{NewToken, Payloads, Role};
/// let new = NewToken { payloads: Payloads::Hidden, ..NewToken::new("on call", Role::Read) };
/// assert_eq!(new.queues, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// The name, for people: 1 to 100 bytes without control characters. Several tokens can have the same.
    pub name: String,
    /// The role.
    pub role: Role,
    /// The only queues that it applies to, 1 to 100; `None` for the whole store.
    pub queues: Option<Vec<String>>,
    /// Whether payloads are shown.
    pub payloads: Payloads,
    /// The time until it expires, above 0; `None` for never.
    pub expires_in: Option<Duration>,
    /// Whether it can also sign requests of the SQS protocol. Who reads the store can then sign as its holder.
    pub signs: bool,
    /// The person or program that makes it.
    pub created_by: String,
}

impl NewToken {
    /// Makes a token for the whole store that shows payloads and never expires.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self {
            name: name.into(),
            role,
            queues: None,
            payloads: Payloads::Shown,
            expires_in: None,
            signs: false,
            created_by: String::new(),
        }
    }

    /// Checks all limits.
    ///
    /// # Errors
    /// `Invalid` if one is broken.
    ///
    /// ```
    /// # use punctual_server::token::{NewToken, Role};
    /// assert!(NewToken::new("", Role::Read).check().is_err());
    /// ```
    pub fn check(&self) -> Result<()> {
        check_text("name of the token", &self.name, NAME_BYTES)?;
        if !self.created_by.is_empty() {
            check_text("name of the creator", &self.created_by, NAME_BYTES)?;
        }
        if self.expires_in.is_some_and(|by| by.is_zero()) {
            return Err(Error::invalid("a token that expires at once is of no use"));
        }
        let Some(queues) = &self.queues else { return Ok(()) };
        if queues.is_empty() || QUEUES_MAX < queues.len() {
            let n = queues.len();
            return Err(Error::invalid(format!("token with {n} queues: 1 to {QUEUES_MAX} are allowed")));
        }
        queues.iter().try_for_each(|queue| check_text("queue", queue, NAME_BYTES_MAX))
    }
}

fn check_text(what: &str, text: &str, longest: usize) -> Result<()> {
    if text.is_empty() {
        Err(Error::invalid(format!("{what} is empty")))
    } else if longest < text.len() {
        let n = text.len();
        Err(Error::invalid(format!("{what} of {n} bytes is over the limit of {longest}")))
    } else if text.chars().any(char::is_control) {
        Err(Error::invalid(format!("{what} contains a control character")))
    } else {
        Ok(())
    }
}

/// A token as the store knows it. It has no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Token {
    /// The id: 8 characters.
    pub id: String,
    /// The name, for people.
    pub name: String,
    /// The role.
    pub role: Role,
    /// The only queues that it applies to; `None` for the whole store.
    pub queues: Option<Vec<String>>,
    /// Whether payloads are shown.
    pub payloads: Payloads,
    /// The time when it was made, by the store's clock.
    pub created_at: Timestamp,
    /// The person or program that made it; can be empty.
    pub created_by: String,
    /// The time when it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// Whether it can also sign requests of the SQS protocol.
    pub signs: bool,
}

/// The text of a token, with its secret. Nothing can print it again.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the token: `pt_`, the id, `_`, and the secret.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the secret access key with which a token that [signs](NewToken::signs) signs requests of the SQS protocol. The access
    /// key id is the id of the token.
    ///
    /// A server derives it from the hash that the store keeps. The token does not follow from it.
    ///
    /// ```
    /// # use punctual_server::token::{self, NewToken, Role};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// # let client = punctual::Client::connect("memory:").await?;
    /// let new = NewToken { signs: true, ..NewToken::new("celery", Role::Operate) };
    /// let made = token::make(&client, &new, token::random()?).await?;
    /// assert_eq!(made.secret.access_key().len(), 64);
    /// # Ok(()) }
    /// ```
    pub fn access_key(&self) -> String {
        let given = Given::parse(&self.0).expect("invariant: a secret is made with the form of a token");
        access_key(&Sha256::digest(given.secret).into())
    }
}

/// Derives the secret access key of a token from the hash of its secret. It has its own name in the hash, so that it is not the text
/// that the store keeps.
pub(crate) fn access_key(digest: &Digest) -> String {
    hex(&Sha256::new().chain_update(b"punctual sqs 1").chain_update(digest).finalize())
}

/// Prints the id only.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = Given::parse(&self.0).map_or("?", |given| given.id);
        write!(f, "Secret({MARK}{id}_…)")
    }
}

/// A token and its text, as they were made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Made {
    /// The token, as the store keeps it.
    pub token: Token,
    /// Its text. Show it once, and keep it nowhere.
    pub secret: Secret,
}

/// The tokens of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tokens {
    /// The tokens, in the order of their ids.
    pub tokens: Vec<Token>,
    /// Ids of tokens that cannot be read: made by a newer punctual, or damaged. They are refused, and can be revoked.
    pub unreadable: Vec<String>,
}

/// Returns random bytes of the system for [`make`].
///
/// # Errors
/// `Unavailable` if the system has none.
pub fn random() -> Result<[u8; RANDOM_BYTES]> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random)
        .map_err(|e| Error::new(ErrorKind::Unavailable, format!("the system has no random bytes: {e}")))?;
    Ok(random)
}

/// Makes a token.
///
/// `random` must come from a cryptographic generator, such as [`random`]. The times are those of the store's clock.
///
/// If the future is dropped, a token that nobody knows may have been made. It is safe to repeat the call with other
/// random bytes, and to revoke the first token.
///
/// # Errors
/// `Invalid` for a broken limit; `Full` at 1,000 tokens; `Conflict` if another token has the id, which other random
/// bytes avoid.
///
/// ```
/// # use punctual_server::token::{self, NewToken, Role};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = punctual::Client::connect("memory:").await?;
/// let made = token::make(&client, &NewToken::new("ana", Role::Admin), token::random()?).await?;
/// assert!(made.secret.expose().starts_with("pt_"));
/// assert!(token::revoke(&client, &made.token.id).await?);
/// # Ok(()) }
/// ```
pub async fn make(client: &Client, new: &NewToken, random: [u8; RANDOM_BYTES]) -> Result<Made> {
    new.check()?;
    if TOKENS_MAX <= list(client).await?.len() {
        return Err(Error::new(
            ErrorKind::Full,
            format!("the store has {TOKENS_MAX} tokens, which is the limit"),
        )
        .with_hint("punctual token revoke ID    revokes one that is not needed"));
    }
    let (id, secret) = random.split_at(ID_BYTES);
    let now = client.store().now().await?;
    let token = Token {
        id: hex(id),
        name: new.name.clone(),
        role: new.role,
        queues: new.queues.clone(),
        payloads: new.payloads,
        created_at: now,
        created_by: new.created_by.clone(),
        expires_at: new.expires_in.map(|by| now.after(by)),
        signs: new.signs,
    };
    let put = DocOp::Put {
        key: key(&token.id),
        precondition: Precondition::IfAbsent,
        value: Stored::of(&token, Sha256::digest(secret).into()).write()?,
    };
    match client.store().doc(&put).await? {
        DocReply::Is(Some(_)) => {
            let secret = Secret(format!("{MARK}{}_{}", token.id, hex(secret)));
            Ok(Made { token, secret })
        }
        DocReply::Conflict(_) => {
            Err(Error::new(ErrorKind::Conflict, format!("there is a token {} already", token.id))
                .with_hint("try again"))
        }
        DocReply::Is(None) | DocReply::Page { .. } => Err(unexpected()),
    }
}

/// Returns all tokens.
///
/// Dropping the future changes nothing.
///
/// # Errors
/// Any error of the store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = punctual::Client::connect("memory:").await?;
/// assert!(punctual_server::token::list(&client).await?.tokens.is_empty());
/// # Ok(()) }
/// ```
pub async fn list(client: &Client) -> Result<Tokens> {
    let (mut all, mut after) = (Tokens::default(), None);
    loop {
        let (docs, more) = page(client, after, BATCH_MAX).await?;
        for doc in &docs {
            match Known::read(doc) {
                Ok(known) => all.tokens.push(known.token),
                Err(_) => all.unreadable.push(id_of(doc).to_owned()),
            }
        }
        after = docs.into_iter().next_back().filter(|_| more).map(|doc| doc.key);
        if after.is_none() {
            return Ok(all);
        }
    }
}

impl Tokens {
    fn len(&self) -> usize {
        self.tokens.len() + self.unreadable.len()
    }
}

/// Revokes a token. Servers refuse it within 1 s.
///
/// Returns whether it existed. Also revokes a token that cannot be read.
///
/// If the future is dropped, the call may have taken effect. It is safe to repeat it.
///
/// # Errors
/// `Invalid` if `id` is no id of a token; any error of the store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = punctual::Client::connect("memory:").await?;
/// assert!(!punctual_server::token::revoke(&client, "00c0ffee").await?);
/// # Ok(()) }
/// ```
pub async fn revoke(client: &Client, id: &str) -> Result<bool> {
    if !is_id(id) {
        return Err(Error::invalid("the id of a token has 8 characters: 0 to 9 and a to f")
            .with_hint("punctual token ls    lists the ids of all tokens"));
    }
    if get(client, id).await?.is_none() {
        return Ok(false);
    }
    let remove = DocOp::Remove { key: key(id), precondition: Precondition::Always };
    match client.store().doc(&remove).await? {
        DocReply::Is(_) => {}
        DocReply::Conflict(_) | DocReply::Page { .. } => return Err(unexpected()),
    }
    // They have ended with it, and are only removed here.
    session::end_all(client, id).await.map_err(Error::in_part)?;
    Ok(true)
}

/// Returns whether the store has a token, readable or not.
pub(crate) async fn any(client: &Client) -> Result<bool> {
    Ok(!page(client, None, 1).await?.0.is_empty())
}

async fn page(client: &Client, after: Option<String>, limit: usize) -> Result<(Vec<Doc>, bool)> {
    let list = DocOp::List { prefix: PREFIX.to_owned(), after, limit };
    match client.store().doc(&list).await? {
        DocReply::Page { docs, more } => Ok((docs, more)),
        DocReply::Is(_) | DocReply::Conflict(_) => Err(unexpected()),
    }
}

async fn get(client: &Client, id: &str) -> Result<Option<Doc>> {
    match client.store().doc(&DocOp::Get { key: key(id) }).await? {
        DocReply::Is(doc) => Ok(doc),
        DocReply::Conflict(_) | DocReply::Page { .. } => Err(unexpected()),
    }
}

/// Returns the token of an id and its secret access key; `None` if there is no such token, or it does not sign.
#[cfg(feature = "sqs")]
pub(crate) async fn signing(client: &Client, id: &str) -> Result<Option<(Token, String)>> {
    if !is_id(id) {
        return Ok(None);
    }
    let Some(doc) = get(client, id).await? else { return Ok(None) };
    let known = Known::read(&doc)?;
    Ok(known.token.signs.then(|| (known.token, access_key(&known.digest))))
}

/// Returns the token of an id.
pub(crate) async fn stored(client: &Client, id: &str) -> Result<Option<Token>> {
    get(client, id).await?.map(|doc| Ok(Known::read(&doc)?.token)).transpose()
}

/// A token as a caller gives it. Nothing is known of it but its form.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) id: &'a str,
    secret: [u8; SECRET_BYTES],
}

impl<'a> Given<'a> {
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(MARK)?.split_once('_')?;
        (is_id(id)).then_some(())?;
        Some(Self { id, secret: unhex(secret)?.try_into().ok()? })
    }

    /// The token of the store that this is; `None` if there is none, or its secret is another.
    pub(crate) async fn find(&self, client: &Client) -> Result<Option<Token>> {
        let Some(doc) = get(client, self.id).await? else { return Ok(None) };
        let known = Known::read(&doc)?;
        let is_right: bool = Sha256::digest(self.secret).ct_eq(&known.digest[..]).into();
        Ok(is_right.then_some(known.token))
    }
}

/// A document, read.
struct Known {
    token: Token,
    digest: Digest,
}

impl Known {
    fn read(doc: &Doc) -> Result<Self> {
        let id = id_of(doc);
        let corrupt = || {
            Error::new(ErrorKind::Corrupt, format!("could not read the token {id:?}"))
                .with_hint("revoke it and make another one, or use the newer punctual that made it")
        };
        let stored: Stored = serde_json::from_slice(&doc.value).map_err(|e| corrupt().with_source(e))?;
        let digest = unhex(&stored.sha256).and_then(|bytes| bytes.try_into().ok()).ok_or_else(corrupt)?;
        let token = Token {
            id: id.to_owned(),
            name: stored.name,
            role: stored.role,
            queues: stored.queues,
            payloads: stored.payloads,
            created_at: Timestamp::saturating_from_ms(stored.created_at_ms),
            created_by: stored.created_by,
            expires_at: stored.expires_at_ms.map(Timestamp::saturating_from_ms),
            signs: stored.signs,
        };
        Ok(Self { token, digest })
    }
}

/// A document. A field that this version does not know can be a restriction, so it makes the token unreadable.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    sha256: String,
    name: String,
    role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queues: Option<Vec<String>>,
    payloads: Payloads,
    created_at_ms: u64,
    created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    signs: bool,
}

impl Stored {
    fn of(token: &Token, digest: Digest) -> Self {
        let token = token.clone();
        Self {
            sha256: hex(&digest),
            name: token.name,
            role: token.role,
            queues: token.queues,
            payloads: token.payloads,
            created_at_ms: token.created_at.as_ms(),
            created_by: token.created_by,
            expires_at_ms: token.expires_at.map(Timestamp::as_ms),
            signs: token.signs,
        }
    }

    fn write(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::invalid("could not write the token").with_source(e))
    }
}

fn key(id: &str) -> String {
    format!("{PREFIX}{id}")
}

fn id_of(doc: &Doc) -> &str {
    doc.key.strip_prefix(PREFIX).unwrap_or(&doc.key)
}

pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 2 * ID_BYTES && text.bytes().all(is_hex)
}

const fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from_digit(n.into(), 16).expect("invariant: four bits are a digit");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes of lower-case hex, at most 32.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if 2 * SECRET_BYTES < text.len() || !text.len().is_multiple_of(2) || !text.bytes().all(is_hex) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a token")
}
