//! Tokens that callers gave: looked up in the store, and then believed for a while.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use punctual::{Client, Error, ErrorKind, Timestamp};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    BELIEVED_FOR, Caller, Refusal,
    guesses::{Before, Guesser, Guesses},
};
use crate::token::{self, Digest, Given, TOKENS_MAX, Token};

/// Longest token that is looked at, in bytes. Tokens have 76.
const TOKEN_BYTES_MAX: usize = 200;
/// Callers that are looked up in the store at the same time. Those of one address are looked up one after the other.
const LANES: usize = 64;

/// The tokens of a store, and what is known of callers. All of that is bounded, and can be lost.
#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) client: Client,
    /// Tokens that were right when they were last looked up. They stay when they are no longer believed: a caller that
    /// had a right token does not guess.
    known: Mutex<HashMap<Digest, Known>>,
    /// Whether the store has a token, and when this was looked up.
    any: tokio::sync::Mutex<Looked<bool>>,
    guesses: Guesses,
    /// Those that sign requests.
    #[cfg(feature = "sqs")]
    pub(super) keys: super::signed::Keys,
    /// Callers whose tokens are being looked up, spread by their addresses.
    lanes: [tokio::sync::Mutex<Looked<()>>; LANES],
    hasher: RandomState,
}

/// What the last look into the store showed, and when it began; or why it failed, and when.
///
/// Callers that waited for a look that failed share its failure. Else each of them would wait as long again, one after the
/// other.
#[derive(Debug)]
struct Looked<T> {
    is: Option<(Instant, T)>,
    failed: Option<(Instant, Refusal)>,
}

impl<T> Default for Looked<T> {
    fn default() -> Self {
        Self { is: None, failed: None }
    }
}

impl<T> Looked<T> {
    /// The failure of a look that ended after `began`.
    fn failed_since(&self, began: Instant) -> Result<(), Refusal> {
        match &self.failed {
            Some((at, refusal)) if began < *at => Err(refusal.clone()),
            _ => Ok(()),
        }
    }

    /// Makes the refusal for a look that fails now.
    fn fail(&mut self, error: &Error) -> Refusal {
        let refusal = unanswered(error);
        self.failed = Some((Instant::now(), refusal.clone()));
        refusal
    }
}

#[derive(Clone, Debug)]
struct Known {
    token: Arc<Token>,
    caller: Caller,
    /// When it was looked up, by this process and by the store.
    at: Instant,
    store_at: Timestamp,
}

impl Known {
    /// The caller, if the token is still believed and has not expired.
    fn believed(&self, now: Instant) -> Option<Result<Caller, Refusal>> {
        let age = now.saturating_duration_since(self.at);
        if BELIEVED_FOR <= age {
            return None;
        }
        let is_over = self.token.expires_at.is_some_and(|at| at <= self.store_at.after(age));
        if !is_over {
            return Some(Ok(self.caller.clone()));
        }
        let hint = "make another one: punctual token new NAME --role ROLE --expires-in 90d";
        Some(Err(Refusal::unauthenticated("the token has expired", hint)))
    }
}

impl Tokens {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::default(),
            any: tokio::sync::Mutex::default(),
            guesses: Guesses::default(),
            #[cfg(feature = "sqs")]
            keys: super::signed::Keys::default(),
            lanes: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            hasher: RandomState::new(),
        }
    }

    /// Whether the store has a token; looked up once in [`BELIEVED_FOR`].
    pub(super) async fn any(&self) -> Result<bool, Refusal> {
        let began = Instant::now();
        let mut looked = self.any.lock().await;
        looked.failed_since(began)?;
        if let Some((at, has)) = looked.is
            && at.elapsed() < BELIEVED_FOR
        {
            return Ok(has);
        }
        let at = Instant::now();
        let has = token::any(&self.client).await.map_err(|e| looked.fail(&e))?;
        looked.is = Some((at, has));
        Ok(has)
    }

    fn known_tokens(&self) -> MutexGuard<'_, HashMap<Digest, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the caller of a token: among those that are believed, else in the store.
    pub(super) async fn look_up(&self, text: &str, guesser: Guesser) -> Result<Caller, Refusal> {
        if TOKEN_BYTES_MAX < text.len() {
            return Err(Refusal::wrong_token());
        }
        let digest: Digest = Sha256::digest(text).into();
        // Where it comes from does not matter for one that is believed.
        if let Some(decided) = self.before(&digest, guesser)? {
            return decided;
        }
        // Callers of one address wait for each other, so that many requests at once are one read of a right token, or
        // one failure, and no more than GUESSES_MAX reads of wrong ones.
        let lane = self.hasher.hash_one(guesser) as usize % LANES;
        let began = Instant::now();
        let mut looked = self.lanes[lane].lock().await;
        looked.failed_since(began)?;
        if let Some(decided) = self.before(&digest, guesser)? {
            return decided;
        }
        let at = Instant::now();
        let found = match Given::parse(text) {
            Some(given) => given.find(&self.client).await,
            None => Ok(None),
        };
        let token = match found {
            Ok(token) => token,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(target: "punctual", %error, "a token is refused");
                None
            }
            Err(error) => return Err(looked.fail(&error)),
        };
        let Some(token) = token else {
            self.known_tokens().remove(&digest);
            let is_last = self.guesses.add(guesser, digest, at);
            // The id is public; a text of another form can be a password, and is not printed.
            let id = Given::parse(text).map_or("?", |given| given.id);
            tracing::warn!(target: "punctual", from = %guesser, id, is_last, "a wrong token was refused");
            return Err(Refusal::wrong_token());
        };
        let store_at = match token.expires_at {
            Some(_) => self.client.store().now().await.map_err(|e| looked.fail(&e))?,
            None => Timestamp::saturating_from_ms(0),
        };
        let known = Known { caller: Caller::from(&token), token: Arc::new(token), at, store_at };
        let decided = known.believed(at).unwrap_or_else(|| Err(Refusal::wrong_token()));
        self.remember(digest, known);
        decided
    }

    /// What is decided without the store.
    fn before(&self, digest: &Digest, guesser: Guesser) -> Result<Option<Result<Caller, Refusal>>, Refusal> {
        let now = Instant::now();
        // A caller with a token that was right before does not guess, even if others with its address do.
        if let Some(known) = self.known_tokens().get(digest) {
            return Ok(known.believed(now));
        }
        match self.guesses.look(guesser, digest, now) {
            Before::Unknown => Ok(None),
            Before::Wrong => Err(Refusal::wrong_token()),
            Before::TooMany(after) => Err(Refusal::rate_limited(after)),
        }
    }

    fn remember(&self, digest: Digest, token: Known) {
        let mut known = self.known_tokens();
        if TOKENS_MAX <= known.len() && !known.contains_key(&digest) {
            let oldest = known.iter().min_by_key(|(_, known)| known.at).map(|(digest, _)| *digest);
            oldest.map(|oldest| known.remove(&oldest));
        }
        known.insert(digest, token);
    }
}

pub(super) fn unanswered(error: &Error) -> Refusal {
    tracing::warn!(target: "punctual", %error, "a token could not be checked");
    Refusal::store(error)
}
