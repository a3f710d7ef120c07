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

/// Members by their scores: whoever is added to most stands highest. Of equal scores that member is above which comes first by its
/// bytes.
///
/// A board may merge the last minutes, hours or days only, by UTC: `last(24, Bucket::Hour)` is the hottest of this hour and the 23 before it.
/// Older buckets are taken off by whoever comes next, in slices, before it is answered: what is told is exact. Of such a board who
/// has a score of 0 in sum is not on it.
///
/// Scores are whole numbers within ±(2^53 − 1), divided by the number of buckets for what a member has in one. A board has up to
/// 1,000,000 members, or as many as it is told: the lowest leave. Names and members have 1 to 255 bytes without NUL; boards whose names
/// begin with `$` are the workers' ([`Client::last_hour`]), and may only be looked at. A step costs
/// O(log n), and something for each bucket where a member is set or removed; on SQLite a rank counts all members above it. On Redis all
/// boards of a store are in its shard 0, hence on one server.
///
/// ```
/// use std::sync::Arc;
/// use punctual::{Bucket, Client, store::{clock::Clock, memory::MemoryStore}};
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
    /// A leaderboard by its name, of all that was ever added. Limits are checked with the first call.
    pub fn leaderboard(&self, name: impl Into<String>) -> Leaderboard {
        Leaderboard { client: self.clone(), name: name.into(), window: None, members_max: BOARD_MEMBERS_MAX }
    }
}

impl Leaderboard {
    /// Merges this minute, hour or day and those before it, so many in all: 1 to 168. Another window is another board.
    pub fn last(mut self, buckets: u16, bucket: Bucket) -> Self {
        self.window = Some(BoardWindow { bucket, buckets });
        self
    }

    /// Lets the lowest leave when there are more members, 1 to 1,000,000.
    pub fn at_most(mut self, members: u32) -> Self {
        self.members_max = members;
        self
    }

    /// Adds to a member's score, in this minute, hour or day; `by` may be negative. Answers the score; `None`: it is not on the board,
    /// the lowest of too many, or 0 in a window.
    ///
    /// After an error of the kind `UnknownOutcome` it may have been added; made again it is added again.
    ///
    /// Dropped, it may have been added or not: made again, it may count twice.
    ///
    /// # Errors
    /// `Invalid` for what breaks a limit, also for a score that would; what the store says.
    pub async fn add(&self, member: impl Into<String>, by: i64) -> Result<Option<i64>> {
        let act = BoardAct::Add { member: member.into(), by, members_max: self.members_max };
        self.score(act).await
    }

    /// Adds to the scores of several members in one atomic step, 1 to 100 of them and none twice: to all, or to none. Who leaves a
    /// full board is decided when all were added. Answers how many members there are then.
    ///
    /// After an error of the kind `UnknownOutcome` they may have been added; made again they are added again.
    ///
    /// Dropped, a part of it may have been added.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn add_all<M: Into<String>>(&self, members: impl IntoIterator<Item = (M, i64)>) -> Result<u64> {
        // One more than may be is enough to refuse them.
        let members = members.into_iter().take(BOARD_ADD_MAX + 1);
        let members = members.map(|(member, by)| (member.into(), by)).collect();
        self.sized(BoardAct::AddAll { members, members_max: self.members_max }).await
    }

    /// Gives a member this score, now, in place of all that it had. Answers as [`Leaderboard::add`] does; may be made again.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn set(&self, member: impl Into<String>, score: i64) -> Result<Option<i64>> {
        let act = BoardAct::Set { member: member.into(), score, members_max: self.members_max };
        self.score(act).await
    }

    /// Takes a member off the board. Answers the score that it had.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn remove(&self, member: impl Into<String>) -> Result<Option<i64>> {
        self.score(BoardAct::Remove { member: member.into() }).await
    }

    /// The rank of a member, from 1, with its score; `None`: it is not on the board.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn standing(&self, member: impl Into<String>) -> Result<Option<Standing>> {
        Ok(self.standings(BoardAct::Rank { member: member.into() }).await?.pop())
    }

    /// The highest `n`, 1 to 1,000.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn top(&self, n: usize) -> Result<Vec<Standing>> {
        self.standings(BoardAct::Top { n }).await
    }

    /// A member with the `n` right above and below it, 1 to 100; nobody if it is not on the board.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// As [`Leaderboard::add`].
    pub async fn around(&self, member: impl Into<String>, n: usize) -> Result<Vec<Standing>> {
        self.standings(BoardAct::Around { member: member.into(), n }).await
    }

    /// How many members it has.
    ///
    /// Dropped, it has changed nothing.
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
