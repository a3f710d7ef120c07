//! What a leaderboard asks of a store.

use std::{collections::BTreeSet, time::Duration};

use super::check_number;
use crate::core::{
    error::{Error, Result},
    job::check_name,
    limits::{
        AROUND_MAX, BATCH_MAX, BOARD_ADD_MAX, BOARD_CUT_ENTRIES, BOARD_MEMBERS_MAX, BUCKETS_OF_BOARD_MAX,
        SCORE_MAX,
    },
    time::Timestamp,
};

/// One step on a leaderboard. A call whose answer was lost may have been done: an add that is made again adds again; a set or a
/// removal may be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardOp {
    /// The board: 1 to 255 bytes without NUL.
    pub name: String,
    /// What it merges; `None`: all that was ever added. Boards of one name with different windows don't know of each other.
    pub window: Option<BoardWindow>,
    /// What to do.
    pub act: BoardAct,
}

/// The minutes, hours or days that a board merges, by UTC: this one and those before it. Older ones are dropped.
///
/// A clock that goes back, by less than the window, adds to the bucket that it was in; what lies further ahead is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoardWindow {
    /// One of them.
    pub bucket: Bucket,
    /// How many, 1 to 168.
    pub buckets: u16,
}

/// A part of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bucket {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
}

/// What to do on a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardAct {
    /// Adds to a member's score, which is 0 where it has none.
    Add {
        /// Whose: 1 to 255 bytes without NUL.
        member: String,
        /// So much, negative to take away. What a member has in one bucket stays within ±(2^53 − 1) / buckets, or nothing is
        /// changed: `Invalid`.
        by: i64,
        /// The most members that the board has, 1 to 1,000,000: the lowest leave, with all that they had. A board with far more
        /// than that, since it was larger before, shrinks with each change by 1,000 entries at most: a member has one in each
        /// bucket. Until then it has more members.
        members_max: u32,
    },
    /// Adds to the scores of several members, as [`BoardAct::Add`] does to one's: to all of them, or to none. Who leaves a board
    /// that is full then is decided when all were added.
    AddAll {
        /// Whose, and how much; 1 to 100 members, none of them twice.
        members: Vec<(String, i64)>,
        /// The most members that the board has.
        members_max: u32,
    },
    /// Gives a member this score, all of it now, in place of what it had.
    Set {
        /// Whose.
        member: String,
        /// This score, within the same bounds as that of one bucket.
        score: i64,
        /// The most members that the board has.
        members_max: u32,
    },
    /// Takes a member off the board.
    Remove {
        /// Whom.
        member: String,
    },
    /// Tells a member's rank and score.
    Rank {
        /// Whose.
        member: String,
    },
    /// Tells the highest.
    Top {
        /// At most this many, 1 to 1,000.
        n: usize,
    },
    /// Tells a member with those right above and below it.
    Around {
        /// Whom.
        member: String,
        /// At most this many on each side, 1 to 100.
        n: usize,
    },
    /// Tells how many members it has.
    Size,
}

/// A member on a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// From 1. Of equal scores the member is above that comes first by its bytes.
    pub rank: u64,
    /// Who it is.
    pub member: String,
    /// Its score: of a board with a window that of all its buckets together, never 0.
    pub score: i64,
}

/// The answer to a [`BoardOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardReply {
    /// Of an add or set: the member's score; `None`: it is not on the board, since it was the lowest of too many, or since its
    /// score of a window is 0. Of a removal: the score that it had.
    Score(Option<i64>),
    /// Of a rank, a top and an around: members by their ranks; none where the member is not on the board.
    Standings(Vec<Standing>),
    /// So many members has the board, after an add of several, too.
    Size(u64),
}

impl Bucket {
    /// How long it lasts.
    pub const fn length(self) -> Duration {
        match self {
            Self::Minute => Duration::from_mins(1),
            Self::Hour => Duration::from_hours(1),
            Self::Day => Duration::from_hours(24),
        }
    }
}

impl BoardWindow {
    /// The number of the bucket that an instant is in.
    pub(crate) fn number(self, now: Timestamp) -> u64 {
        now.as_ms() / self.bucket.length().as_millis() as u64
    }

    /// The number of the bucket that is added to; `newest`: the one that was added to last.
    pub(crate) fn current(self, newest: Option<u64>, now: Timestamp) -> u64 {
        let by_clock = self.number(now);
        newest
            .filter(|newest| (by_clock..by_clock + u64::from(self.buckets)).contains(newest))
            .unwrap_or(by_clock)
    }

    /// The first bucket that is merged where this one is the current.
    pub(crate) fn first(self, current: u64) -> u64 {
        (current + 1).saturating_sub(self.buckets.into())
    }
}

impl BoardOp {
    /// What a member may have in one bucket, at most.
    pub(crate) fn bucket_max(&self) -> i64 {
        SCORE_MAX / self.window.map_or(1, |window| i64::from(window.buckets))
    }

    /// The score of a member of a bucket when this is added to it.
    pub(crate) fn sum(&self, score: i64, by: i64) -> Result<i64> {
        let (sum, max) = (score.saturating_add(by), self.bucket_max());
        if (-max..=max).contains(&sum) {
            return Ok(sum);
        }
        Err(Error::invalid(format!("a score of {sum} is not within ±{max}")))
    }

    /// How many members leave a board that has too many, at most, in a step that changes so many: as many, and so many more as have
    /// [`BOARD_CUT_ENTRIES`] entries at most.
    pub(crate) fn leave_max(&self, changed: usize) -> usize {
        changed + BOARD_CUT_ENTRIES / self.window.map_or(1, |window| usize::from(window.buckets))
    }

    /// Checks every limit.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self) -> Result<()> {
        check_name("board", &self.name)?;
        if let Some(window) = self.window {
            check_number("a number of buckets", window.buckets.into(), BUCKETS_OF_BOARD_MAX.into())?;
        }
        match &self.act {
            BoardAct::Add { member, by: score, members_max }
            | BoardAct::Set { member, score, members_max } => {
                check_name("member", member)?;
                check_number("a number of members", (*members_max).into(), BOARD_MEMBERS_MAX.into())?;
                self.sum(0, *score).map(drop)
            }
            BoardAct::AddAll { members, members_max } => {
                check_number("members of one step", members.len() as u64, BOARD_ADD_MAX as u64)?;
                check_number("a number of members", (*members_max).into(), BOARD_MEMBERS_MAX.into())?;
                let mut seen = BTreeSet::new();
                for (member, by) in members {
                    check_name("member", member)?;
                    self.sum(0, *by)?;
                    if !seen.insert(member) {
                        return Err(Error::invalid(format!("member {member:?} is added to twice")));
                    }
                }
                Ok(())
            }
            BoardAct::Remove { member } | BoardAct::Rank { member } => check_name("member", member),
            BoardAct::Top { n } => check_number("a top", *n as u64, BATCH_MAX as u64),
            BoardAct::Around { member, n } => {
                check_name("member", member)?;
                check_number("a neighbourhood", *n as u64, AROUND_MAX as u64)
            }
            BoardAct::Size => Ok(()),
        }
    }
}
