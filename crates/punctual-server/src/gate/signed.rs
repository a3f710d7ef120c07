//! Callers that sign their requests (AWS Signature Version 4) with a token that [signs](crate::token::NewToken::signs).
//!
//! The access key is the id of the token. A key that is known to be right is never locked out by wrong signatures of others: each
//! signature is checked, whatever came before it from the same address or with the same key. Nobody can try 2²⁵⁶ secrets. Wrong ones
//! are counted to bound the lines of the log. They also decide in which line an address waits for a look at keys that are not known yet:
//! such looks are all that a caller without a key can make the store do.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::http::request::Parts;
use punctual::{Client, Error, ErrorKind, Timestamp};
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, task::spawn_blocking, time::Instant};

use super::{
    BELIEVED_FOR, Caller, Gate, Refusal,
    guesses::{Before, Guesser, Guesses},
    request,
    signature::{Malformed, SKEW_MAX, Signature, hash_of},
};
use crate::token::{self, TOKENS_MAX};

/// Keys that are looked up in the store at the same time, and were right before. Further requests wait.
const LOOK_UPS_MAX: usize = 8;
/// Keys that are looked up for the first time at the same time, so that guesses hold up none that is right.
const FIRST_LOOK_UPS_MAX: usize = 4;
/// The same, of all addresses that have sent many wrong ones.
const GUESSERS_LOOK_UPS_MAX: usize = 1;
/// Ids that are remembered as those of no key. If there are more, all are forgotten.
const MISSING_MAX: usize = 4_096;
/// Bodies over this size are hashed on a thread of their own, so that other requests go on.
const SMALL_BYTES: usize = 64 * 1024;
/// Such bodies that are hashed at the same time. A wrong signature is known only afterwards.
const HASHES_MAX: usize = 1;

/// Lines of the log.
const UNKNOWN: &str = "a request with an unknown access key was refused";
const WRONG: &str = "a request with a wrong signature was refused";

/// Why a signed request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unsigned {
    /// It has no signature, or one that cannot be read.
    Incomplete(String),
    /// No token that signs has the id.
    UnknownKey,
    /// The token has expired.
    ExpiredKey,
    /// It was signed too long ago, or in the future: by so much.
    OutOfTime(Duration),
    /// Another secret made the signature, or the request was changed.
    WrongSignature,
    /// As for requests with a token.
    Refused(Refusal),
}

impl From<Refusal> for Unsigned {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Malformed> for Unsigned {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Incomplete(what)
    }
}

/// A key that is right, and the signature that a request has made with it, which is not checked yet: it needs the body.
#[derive(Debug)]
pub(crate) struct Signer {
    signature: Signature,
    /// When it was made, as it says.
    at: Timestamp,
    known: Known,
    guesser: Guesser,
}

/// What the head of a request says of its caller.
#[derive(Debug)]
pub(crate) enum Claim {
    /// It is known already: by another way than a signature, or because nobody needs one.
    Known(Caller),
    /// It has yet to be checked.
    Signed(Box<Signer>),
}

impl Claim {
    /// Whether only the hash of the body is left to compare: the caller has the key, as the head of its request shows.
    pub(crate) fn is_verified(&self, parts: &Parts) -> bool {
        match self {
            Self::Known(_) => true,
            Self::Signed(signer) => signer.signature.said_hash(parts).is_some(),
        }
    }
}

/// Keys that were looked up, and wrong ones for the log. All of that is bounded, and can be lost.
#[derive(Debug)]
pub(super) struct Keys {
    known: Mutex<HashMap<String, Known>>,
    /// Those of signatures count apart from those of tokens, so that neither closes the other's door.
    wrong: Guesses,
    /// Ids of no key, and when this was seen.
    missing: Mutex<HashMap<String, Instant>>,
    look_ups: Semaphore,
    first_look_ups: Semaphore,
    guessers_look_ups: Semaphore,
    hashes: Arc<Semaphore>,
}

#[derive(Clone, Debug)]
struct Known {
    secret: Arc<str>,
    caller: Caller,
    expires_at: Option<Timestamp>,
    /// When it was looked up, by this process and by the store.
    at: Instant,
    store_at: Timestamp,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            wrong: Guesses::default(),
            missing: Mutex::default(),
            look_ups: Semaphore::new(LOOK_UPS_MAX),
            first_look_ups: Semaphore::new(FIRST_LOOK_UPS_MAX),
            guessers_look_ups: Semaphore::new(GUESSERS_LOOK_UPS_MAX),
            hashes: Arc::new(Semaphore::new(HASHES_MAX)),
        }
    }
}

impl Keys {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn believed(&self, id: &str) -> Option<Known> {
        self.table().get(id).filter(|known| known.at.elapsed() < BELIEVED_FOR).cloned()
    }

    fn is_missing(&self, id: &str) -> bool {
        self.missing_ids().get(id).is_some_and(|at| at.elapsed() < BELIEVED_FOR)
    }

    fn missing_ids(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember_missing(&self, id: &str, at: Instant) {
        let mut missing = self.missing_ids();
        if MISSING_MAX <= missing.len() {
            missing.retain(|_, at| at.elapsed() < BELIEVED_FOR);
            if MISSING_MAX <= missing.len() {
                missing.clear();
            }
        }
        missing.insert(id.to_owned(), at);
    }

    /// Returns where a look at a key has to wait. Guesses must not hold up keys that were right, nor the first look at a right one from
    /// another address.
    fn line(&self, id: &str, guesser: Guesser) -> &Semaphore {
        if self.table().contains_key(id) {
            &self.look_ups
        } else if self.wrong.look(guesser, &digest(UNKNOWN, id), Instant::now()) == Before::Unknown {
            &self.first_look_ups
        } else {
            &self.guessers_look_ups
        }
    }

    /// Finds a key: among those that are believed, else in the store.
    async fn find(&self, client: &Client, id: &str, guesser: Guesser) -> Result<Option<Known>, Refusal> {
        if let Some(known) = self.believed(id) {
            return Ok(Some(known));
        }
        if !token::is_id(id) || self.is_missing(id) {
            return Ok(None);
        }
        let _look_up = self.line(id, guesser).acquire().await.expect("invariant: it is never closed");
        if let Some(known) = self.believed(id) {
            return Ok(Some(known));
        }
        if self.is_missing(id) {
            return Ok(None);
        }
        let at = Instant::now();
        let found = match token::signing(client, id).await {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(target: "punctual", error = %error.with_causes(), "a token is refused");
                None
            }
            Err(error) => return Err(super::tokens::unanswered(&error)),
        };
        let Some((token, secret)) = found else {
            self.table().remove(id);
            self.remember_missing(id, at);
            return Ok(None);
        };
        let store_at = client.store().now().await.map_err(|error| super::tokens::unanswered(&error))?;
        let known = Known {
            secret: secret.into(),
            caller: Caller::from(&token),
            expires_at: token.expires_at,
            at,
            store_at,
        };
        self.remember(id, &known);
        Ok(Some(known))
    }

    fn remember(&self, id: &str, key: &Known) {
        let mut table = self.table();
        if TOKENS_MAX <= table.len() && !table.contains_key(id) {
            let oldest = table.iter().min_by_key(|(_, known)| known.at).map(|(id, _)| id.clone());
            oldest.map(|oldest| table.remove(&oldest));
        }
        table.insert(id.to_owned(), key.clone());
    }

    /// Says in the log that a signature was wrong: some lines for each address.
    fn note(&self, guesser: Guesser, id: &str, what: &str) {
        let (now, digest) = (Instant::now(), digest(what, id));
        if self.wrong.look(guesser, &digest, now) != Before::Unknown {
            return;
        }
        let is_last = self.wrong.add(guesser, digest, now);
        tracing::warn!(target: "punctual", from = %guesser, id = shown(id), is_last, "{what}");
    }

    /// Returns the hash of a body, and the body.
    async fn hash(&self, body: Vec<u8>) -> Result<(String, Vec<u8>), Refusal> {
        if body.len() <= SMALL_BYTES {
            return Ok((hash_of(&body), body));
        }
        let turn = Arc::clone(&self.hashes).acquire_owned().await.expect("invariant: it is never closed");
        let hashed = spawn_blocking(move || {
            let hash = hash_of(&body);
            drop(turn);
            (hash, body)
        });
        let stops = |_| super::tokens::unanswered(&Error::new(ErrorKind::Closed, "the server stops"));
        hashed.await.map_err(stops)
    }
}

impl Gate {
    /// Reads who has sent a request, from its head alone: what is refused here needs no body.
    ///
    /// While the store has no token, a signature is as good as none, and callers on the same machine are admins.
    pub(crate) async fn claim(&self, parts: &Parts, service: &str) -> Result<Claim, Unsigned> {
        let claim = self.key(parts, service).await?;
        if let Claim::Signed(signer) = &claim {
            let now = signer.known.store_at.after(signer.known.at.elapsed());
            let skew = now.since(signer.at).max(signer.at.since(now));
            if SKEW_MAX < skew {
                return Err(Unsigned::OutOfTime(skew));
            }
            // Then only the hash is left to compare when the body is there.
            let Signer { signature, known, .. } = &**signer;
            if let Some(hash) = signature.said_hash(parts)
                && !signature.is_of(&known.secret, parts, parts.uri.path(), hash)
            {
                return Err(self.wrong(signer));
            }
        }
        Ok(claim)
    }

    /// Finds the caller of a request that was let in before, for an answer that lasts longer than a key is believed.
    pub(crate) async fn again(&self, parts: &Parts, service: &str) -> Result<Caller, Unsigned> {
        Ok(match self.key(parts, service).await? {
            Claim::Known(caller) => caller,
            Claim::Signed(signer) => signer.known.caller,
        })
    }

    /// Finds the key of a request. Its signature is not checked, nor its time.
    async fn key(&self, parts: &Parts, service: &str) -> Result<Claim, Unsigned> {
        if !Signature::is_in(&parts.headers) {
            return Ok(Claim::Known(self.authenticate(parts).await?));
        }
        let peer = request::peer(parts);
        let Some(tokens) = &self.tokens else { return Ok(Claim::Known(self.local(parts, peer)?)) };
        if !tokens.any().await? {
            return Ok(Claim::Known(self.local(parts, peer)?));
        }
        let signature = Signature::parse(&parts.headers, service)?;
        let (at, guesser) = (signature.at()?, self.guesser(parts));
        let Some(known) = tokens.keys.find(&tokens.client, &signature.key, guesser).await? else {
            tokens.keys.note(guesser, &signature.key, UNKNOWN);
            return Err(Unsigned::UnknownKey);
        };
        let now = known.store_at.after(known.at.elapsed());
        if known.expires_at.is_some_and(|expires_at| expires_at <= now) {
            return Err(Unsigned::ExpiredKey);
        }
        Ok(Claim::Signed(Box::new(Signer { signature, at, known, guesser })))
    }

    /// Checks a claim against the body, and returns the caller and the body. `path` is that of the request as it was sent.
    pub(crate) async fn verify(
        &self,
        claim: Claim,
        parts: &Parts,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(Caller, Vec<u8>), Unsigned> {
        let signer = match claim {
            Claim::Known(caller) => return Ok((caller, body)),
            Claim::Signed(signer) => signer,
        };
        let (hash, body) = match &self.tokens {
            Some(tokens) => tokens.keys.hash(body).await?,
            None => (hash_of(&body), body),
        };
        let is_right = match signer.signature.said_hash(parts) {
            // Its signature was checked with the head.
            Some(said) => said == hash,
            None => signer.signature.is_of(&signer.known.secret, parts, path, &hash),
        };
        if is_right { Ok((signer.known.caller, body)) } else { Err(self.wrong(&signer)) }
    }

    fn wrong(&self, signer: &Signer) -> Unsigned {
        if let Some(tokens) = &self.tokens {
            tokens.keys.note(signer.guesser, &signer.signature.key, WRONG);
        }
        Unsigned::WrongSignature
    }
}

/// Returns the region of a signed request.
pub(crate) fn region(parts: &Parts, service: &str) -> Option<String> {
    Signature::parse(&parts.headers, service).ok().map(|signature| signature.region)
}

/// An id as the log shows it: it can be anything, also a secret in the wrong place.
fn shown(id: &str) -> &str {
    if id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) { id } else { "?" }
}

/// What a wrong request counts as, so that the same one counts once.
fn digest(what: &str, id: &str) -> token::Digest {
    Sha256::digest(format!("{what} {id}")).into()
}
