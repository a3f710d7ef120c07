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
use crate::{
    session,
    token::{self, Digest, Given, TOKENS_MAX, Token},
};

/// Longest token that is looked at, in bytes. Tokens have 76.
const TOKEN_BYTES_MAX: usize = 200;
/// Callers that are looked up in the store at the same time. Those of one address are looked up one after the other.
const LANES: usize = 64;

/// What a caller shows.
#[derive(Clone, Copy)]
pub(super) enum Shown<'a> {
    /// A token, in a header or a form.
    Token(&'a str),
    /// The session of a browser, in a cookie.
    Session(&'a str),
}

impl Shown<'_> {
    const fn text(&self) -> &str {
        match self {
            Self::Token(text) | Self::Session(text) => text,
        }
    }

    /// By which it is known. A session is none in a header, and a token none in a cookie.
    fn digest(self) -> Digest {
        match self {
            Self::Token(text) => Sha256::digest(text).into(),
            Self::Session(text) => {
                Sha256::new().chain_update("session ").chain_update(text).finalize().into()
            }
        }
    }

    /// Finds the token, and when it or the session ends.
    async fn find(self, client: &Client) -> Result<Option<(Token, Option<Timestamp>)>, Error> {
        match self {
            Self::Token(text) => {
                let Some(given) = Given::parse(text) else { return Ok(None) };
                Ok(given.find(client).await?.map(|token| {
                    let ends = token.expires_at;
                    (token, ends)
                }))
            }
            Self::Session(text) => Ok(session::find(client, text).await?.map(|(token, ends)| {
                let ends = token.expires_at.map_or(ends, |at| at.min(ends));
                (token, Some(ends))
            })),
        }
    }
}

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
    /// The lane of all callers that guess, for tokens that were not right before.
    slow_lane: tokio::sync::Mutex<Looked<()>>,
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
    /// When the token or the session ends.
    ends: Option<Timestamp>,
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
        let now = self.store_at.after(age);
        if self.ends.is_none_or(|at| now < at) {
            return Some(Ok(self.caller.clone()));
        }
        if self.token.expires_at.is_none_or(|at| now < at) {
            return Some(Err(Refusal::unauthenticated("the session has ended", "log in again")));
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
            slow_lane: tokio::sync::Mutex::default(),
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

    /// Begins a session of a token, and returns it.
    pub(super) async fn log_in(&self, text: &str, guesser: Guesser) -> Result<String, Refusal> {
        let caller = self.look_up(Shown::Token(text), guesser).await?;
        let unanswered = |error: Error| unanswered(&error);
        let id = caller.token.as_deref().unwrap_or_default();
        let token = token::stored(&self.client, id).await.map_err(unanswered)?;
        let token = token.ok_or_else(Refusal::wrong_token)?;
        let random = token::random().map_err(unanswered)?;
        session::begin(&self.client, &token, random).await.map_err(unanswered)
    }

    /// Ends a session.
    pub(super) async fn log_out(&self, text: &str) -> Result<(), Refusal> {
        session::end(&self.client, text).await.map_err(|error| unanswered(&error))?;
        self.known_tokens().remove(&Shown::Session(text).digest());
        Ok(())
    }

    /// Finds the caller of a token or session: among those that are believed, else in the store.
    pub(super) async fn look_up(&self, shown: Shown<'_>, guesser: Guesser) -> Result<Caller, Refusal> {
        let text = shown.text();
        if TOKEN_BYTES_MAX < text.len() {
            return Err(Refusal::wrong_token());
        }
        if matches!(shown, Shown::Session(_)) && !session::is_one(text) {
            // The cookie of an earlier version, or of another program.
            return Err(Refusal::unauthenticated("the cookie is no session of this server", "log in again"));
        }
        let digest = shown.digest();
        // Where it comes from does not matter for one that is believed.
        if let Some(decided) = self.before(&digest, guesser)? {
            return decided;
        }
        // Callers of one address wait for each other, so that many requests at once are one read of a right token, or one failure. All
        // that guess wait for each other, so that their tokens are one read at a time, and hold up nobody else.
        let began = Instant::now();
        let mut looked = self.lane(&digest, guesser).lock().await;
        looked.failed_since(began)?;
        if let Some(decided) = self.before(&digest, guesser)? {
            return decided;
        }
        let at = Instant::now();
        let token = match shown.find(&self.client).await {
            Ok(token) => token,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(target: "punctual", error = %error.with_causes(), "a token is refused");
                None
            }
            Err(error) => return Err(looked.fail(&error)),
        };
        let Some((token, ends)) = token else {
            self.known_tokens().remove(&digest);
            self.note_wrong(text, digest, guesser, at);
            return Err(Refusal::wrong_token());
        };
        let store_at = match ends {
            Some(_) => self.client.store().now().await.map_err(|e| looked.fail(&e))?,
            None => Timestamp::saturating_from_ms(0),
        };
        let known = Known { caller: Caller::from(&token), token: Arc::new(token), ends, at, store_at };
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
            Before::Unknown | Before::Guess => Ok(None),
            Before::Wrong => Err(Refusal::wrong_token()),
        }
    }

    /// Returns where a look at a token has to wait.
    fn lane(&self, digest: &Digest, guesser: Guesser) -> &tokio::sync::Mutex<Looked<()>> {
        let was_right = self.known_tokens().contains_key(digest);
        if !was_right && self.guesses.look(guesser, digest, Instant::now()) == Before::Guess {
            return &self.slow_lane;
        }
        &self.lanes[self.hasher.hash_one(guesser) as usize % LANES]
    }

    /// Counts a wrong token or session, and says so in the log: some lines for each caller.
    fn note_wrong(&self, text: &str, digest: Digest, guesser: Guesser, at: Instant) {
        if self.guesses.look(guesser, &digest, at) != Before::Unknown {
            return;
        }
        let is_last = self.guesses.add(guesser, digest, at);
        // The id is public; a text of another form can be a password, and is not printed.
        let id = Given::parse(text).map_or("?", |given| given.id);
        tracing::warn!(target: "punctual", from = %guesser, id, is_last, "a wrong token was refused");
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
    tracing::warn!(target: "punctual", error = %error.with_causes(), "a token could not be checked");
    Refusal::store(error)
}
