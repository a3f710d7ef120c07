//! Callers that sign their requests (AWS Signature Version 4) with a token that [signs](crate::token::NewToken::signs).
//!
//! The access key is the id of the token. A key that is known to be right is never locked out by wrong signatures of others: each
//! signature is checked, whatever came before it from the same address or with the same key. Nobody can try 2²⁵⁶ secrets. Wrong ones
//! are counted only to bound the lines of the log.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::http::request::Parts;
use punctual::{Client, ErrorKind, Timestamp};
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    BELIEVED_FOR, Caller, Gate, Refusal,
    guesses::{Before, Guesser, Guesses},
    request,
    signature::{Malformed, SKEW_MAX, Signature},
};
use crate::token::{self, TOKENS_MAX};

/// Keys that are looked up in the store at the same time. Further requests wait.
const LOOK_UPS_MAX: usize = 8;

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

/// Keys that were looked up, and wrong ones for the log. All of that is bounded, and can be lost.
#[derive(Debug)]
pub(super) struct Keys {
    known: Mutex<HashMap<String, Known>>,
    /// Those of signatures count apart from those of tokens, so that neither closes the other's door.
    wrong: Guesses,
    look_ups: Semaphore,
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
        Self { known: Mutex::default(), wrong: Guesses::default(), look_ups: Semaphore::new(LOOK_UPS_MAX) }
    }
}

impl Keys {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn believed(&self, id: &str) -> Option<Known> {
        self.table().get(id).filter(|known| known.at.elapsed() < BELIEVED_FOR).cloned()
    }

    /// Finds a key: among those that are believed, else in the store.
    async fn find(&self, client: &Client, id: &str) -> Result<Option<Known>, Refusal> {
        if let Some(known) = self.believed(id) {
            return Ok(Some(known));
        }
        let _look_up = self.look_ups.acquire().await.expect("invariant: it is never closed");
        if let Some(known) = self.believed(id) {
            return Ok(Some(known));
        }
        let at = Instant::now();
        let found = match token::signing(client, id).await {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(target: "punctual", %error, "a token is refused");
                None
            }
            Err(error) => return Err(super::tokens::unanswered(&error)),
        };
        let Some((token, secret)) = found else {
            self.table().remove(id);
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
        let (now, digest) = (Instant::now(), Sha256::digest(format!("{what} {id}")).into());
        if self.wrong.look(guesser, &digest, now) != Before::Unknown {
            return;
        }
        let is_last = self.wrong.add(guesser, digest, now);
        tracing::warn!(target: "punctual", from = %guesser, id, is_last, "{what}");
    }
}

impl Gate {
    /// Reads who has sent a request, from its head alone: what is refused here needs no body.
    ///
    /// While the store has no token, a signature is as good as none, and callers on the same machine are admins.
    pub(crate) async fn claim(&self, parts: &Parts, service: &str) -> Result<Claim, Unsigned> {
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
        let Some(known) = tokens.keys.find(&tokens.client, &signature.key).await? else {
            tokens.keys.note(
                guesser,
                shown(&signature.key),
                "a request with an unknown access key was refused",
            );
            return Err(Unsigned::UnknownKey);
        };
        let now = known.store_at.after(known.at.elapsed());
        if known.expires_at.is_some_and(|expires_at| expires_at <= now) {
            return Err(Unsigned::ExpiredKey);
        }
        let skew = now.since(at).max(at.since(now));
        if SKEW_MAX < skew {
            return Err(Unsigned::OutOfTime(skew));
        }
        Ok(Claim::Signed(Box::new(Signer { signature, known, guesser })))
    }

    /// Checks a claim against the body. `path` is that of the request as it was sent.
    pub(crate) fn verify(
        &self,
        claim: Claim,
        parts: &Parts,
        path: &str,
        body: &[u8],
    ) -> Result<Caller, Unsigned> {
        let signer = match claim {
            Claim::Known(caller) => return Ok(caller),
            Claim::Signed(signer) => signer,
        };
        if signer.signature.is_of(&signer.known.secret, parts, path, body) {
            return Ok(signer.known.caller);
        }
        if let Some(tokens) = &self.tokens {
            tokens.keys.note(
                signer.guesser,
                &signer.signature.key,
                "a request with a wrong signature was refused",
            );
        }
        Err(Unsigned::WrongSignature)
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
