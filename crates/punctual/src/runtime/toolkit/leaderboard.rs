//! Leaderboards, through a client.

use super::unexpected;
use crate::{
    core::{
        error::{Error, Result},
        limits::{BOARD_ADD_MAX, BOARD_MEMBERS_MAX},
    },
    runtime::client::Client,
    store::{BoardAct, BoardOp, BoardReply, BoardWindow, Bucket, Standing, ToolOp, ToolReply},
};

/// A leaderboard: members ranked by their scores, the highest first.
///
/// Members with equal scores are ranked by their bytes, the lowest first.
///
/// A board can cover the last minutes, hours or days only, by UTC: `last(24, Bucket::Hour)` covers this hour and the
/// 23 before it. Each call first removes old buckets in slices, so answers are exact. In such a board, a member whose
/// scores add up to 0 is not listed.
///
/// Scores are whole numbers within ±(2^53 − 1). In a board with several buckets, the score in one bucket is bounded
/// by this divided by their number. A board has up to 1,000,000 members, or the chosen number: the lowest are
/// removed. Names and members have 1 to 255 bytes without NUL. Boards whose names begin with `$` belong to workers
/// ([`Client::last_hour`]) and can only be read.
///
/// A call costs O(log n), plus one step per bucket if a member is set or removed. On SQLite, a rank counts all
/// members above it. On Redis, all boards of a store are in its shard 0, and so on one server.
///
/// ```
/// use std::sync::Arc;
/// use punctual::{Client, store::{clock::Clock, memory::MemoryStore}, toolkit::Bucket};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let client = Client::new(Arc::new(MemoryStore::new(Clock::System)));
/// let hottest = client.leaderboard("posts").last(24, Bucket::Hour).at_most(10_000);
/// hottest.add("a post", 3).await?;
/// hottest.add("another post", 5).await?;
/// let top = hottest.top(10).await?;
/// assert_eq!((top[0].rank, &*top[0].member, top[0].score), (1, "another post", 5));
/// assert_eq!(hottest.standing("a post").await?.map(|is| is.rank), Some(2));
/// # Ok::<(), punctual::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Leaderboard {
    client: Client,
    name: String,
    window: Option<BoardWindow>,
    members_max: u32,
}

impl Client {
    /// Returns the leaderboard of this name, over all time.
    ///
    /// Its limits are checked by the first call.
    pub fn leaderboard(&self, name: impl Into<String>) -> Leaderboard {
        Leaderboard { client: self.clone(), name: name.into(), window: None, members_max: BOARD_MEMBERS_MAX }
    }
}

impl Leaderboard {
    /// Covers the current minute, hour or day and those before it: 1 to 168 in all.
    ///
    /// Another window is another board.
    pub fn last(mut self, buckets: u16, bucket: Bucket) -> Self {
        self.window = Some(BoardWindow { bucket, buckets });
        self
    }

    /// Sets the most members, 1 to 1,000,000.
    ///
    /// If there are more, the lowest are removed.
    pub fn at_most(mut self, members: u32) -> Self {
        self.members_max = members;
        self
    }

    /// Adds `by`, which can be negative, to a member's score; returns the score.
    ///
    /// In a windowed board it adds to the current minute, hour or day. `None` means that the member is not listed: it
    /// was the lowest of too many, or its scores in the window add up to 0.
    ///
    /// After `UnknownOutcome`, the score may have been added, and a repeated call adds it again.
    ///
    /// If the future is dropped, the score may have been added. A repeated call can add it twice.
    ///
    /// # Errors
    /// `Invalid` if a limit is broken, also by the new score; otherwise any error of the store.
    pub async fn add(&self, member: impl Into<String>, by: i64) -> Result<Option<i64>> {
        let act = BoardAct::Add { member: member.into(), by, members_max: self.members_max };
        self.score(act).await
    }

    /// Adds to the scores of several members in one atomic step.
    ///
    /// At most 100, each once. Returns the number of members on the board.
    /// If the board is full, the lowest are removed after all were added.
    ///
    /// After `UnknownOutcome`, the scores may have been added, and a repeated call adds them again.
    ///
    /// If the future is dropped, the scores may have been added. A repeated call can add them twice.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn add_all<M: Into<String>>(&self, members: impl IntoIterator<Item = (M, i64)>) -> Result<u64> {
        // One more than allowed is enough to refuse them.
        let members = members.into_iter().take(BOARD_ADD_MAX + 1);
        let members = members.map(|(member, by)| (member.into(), by)).collect();
        self.sized(BoardAct::AddAll { members, members_max: self.members_max }).await
    }

    /// Sets the score of a member, in place of all that it had.
    ///
    /// Returns as [`Leaderboard::add`] does. Safe to repeat.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn set(&self, member: impl Into<String>, score: i64) -> Result<Option<i64>> {
        let act = BoardAct::Set { member: member.into(), score, members_max: self.members_max };
        self.score(act).await
    }

    /// Removes a member; returns the score that it had.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn remove(&self, member: impl Into<String>) -> Result<Option<i64>> {
        self.score(BoardAct::Remove { member: member.into() }).await
    }

    /// Returns the rank of a member, from 1, and its score; `None` if it is not listed.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn standing(&self, member: impl Into<String>) -> Result<Option<Standing>> {
        Ok(self.standings(BoardAct::Rank { member: member.into() }).await?.pop())
    }

    /// Returns the highest `n` members, 1 to 1,000.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn top(&self, n: usize) -> Result<Vec<Standing>> {
        self.standings(BoardAct::Top { n }).await
    }

    /// Returns a member and the `n` members right above and below it, 1 to 100.
    ///
    /// Empty if it is not listed.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn around(&self, member: impl Into<String>, n: usize) -> Result<Vec<Standing>> {
        self.standings(BoardAct::Around { member: member.into(), n }).await
    }

    /// Returns the number of members.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn size(&self) -> Result<u64> {
        self.sized(BoardAct::Size).await
    }

    async fn sized(&self, act: BoardAct) -> Result<u64> {
        match self.ask(act).await? {
            BoardReply::Size(size) => Ok(size),
            _ => Err(unexpected()),
        }
    }

    async fn score(&self, act: BoardAct) -> Result<Option<i64>> {
        match self.ask(act).await? {
            BoardReply::Score(score) => Ok(score),
            _ => Err(unexpected()),
        }
    }

    async fn standings(&self, act: BoardAct) -> Result<Vec<Standing>> {
        match self.ask(act).await? {
            BoardReply::Standings(standings) => Ok(standings),
            _ => Err(unexpected()),
        }
    }

    async fn ask(&self, act: BoardAct) -> Result<BoardReply> {
        if self.name.starts_with('$') && is_change(&act) {
            return Err(Error::invalid("board names that begin with `$` are reserved"));
        }
        let op = BoardOp { name: self.name.clone(), window: self.window, act };
        match self.client.store().tool(&ToolOp::Board(op)).await? {
            ToolReply::Board(said) => Ok(said),
            _ => Err(unexpected()),
        }
    }
}

const fn is_change(act: &BoardAct) -> bool {
    match act {
        BoardAct::Add { .. } | BoardAct::AddAll { .. } | BoardAct::Set { .. } | BoardAct::Remove { .. } => {
            true
        }
        BoardAct::Rank { .. } | BoardAct::Top { .. } | BoardAct::Around { .. } | BoardAct::Size => false,
    }
}
