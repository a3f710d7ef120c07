//! The steps on a leaderboard.

use serde::{Deserialize, Serialize};
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

/// A step on a leaderboard.
///
/// If an answer is lost, the step may have been done. A repeated add adds again; a set or removal can be repeated
/// safely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardOp {
    /// The name of the board: 1 to 255 bytes without NUL.
    pub name: String,
    /// The window; `None` covers all time. Boards of one name with different windows are separate.
    pub window: Option<BoardWindow>,
    /// The step.
    pub act: BoardAct,
}

/// A window: the current minute, hour or day and those before it, by UTC.
///
/// Older ones are dropped.
///
/// If the clock goes back by less than the window, adds go to the bucket that was current before. What is further
/// ahead is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardWindow {
    /// The kind of bucket.
    pub bucket: Bucket,
    /// The number of buckets, 1 to 168.
    pub buckets: u16,
}

/// A bucket of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bucket {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
}

/// The kind of a step on a leaderboard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum BoardAct {
    /// Adds to the score of a member, which starts at 0.
    Add {
        /// The member: 1 to 255 bytes without NUL.
        member: String,
        /// How much, negative to subtract. The score in one bucket must stay within ±(2^53 − 1) / buckets; otherwise
        /// nothing is changed: `Invalid`.
        by: i64,
        /// The most members of the board, 1 to 1,000,000: the lowest are removed with all their entries. A board that
        /// was larger before shrinks by at most 1,000 entries with each change (a member has one entry in each
        /// bucket). Until then it has more members.
        members_max: u32,
    },
    /// Adds to the scores of several members as [`BoardAct::Add`] does: to all of them, or to none. If the board is
    /// full, the lowest are removed after all were added.
    AddAll {
        /// The members and how much, 1 to 100, no member twice.
        members: Vec<(String, i64)>,
        /// The most members of the board.
        members_max: u32,
    },
    /// Sets the score of a member, in place of all that it had.
    Set {
        /// The member.
        member: String,
        /// The score, within the same bounds as in one bucket.
        score: i64,
        /// The most members of the board.
        members_max: u32,
    },
    /// Removes a member.
    Remove {
        /// The member.
        member: String,
    },
    /// Returns the rank and score of a member.
    Rank {
        /// The member.
        member: String,
    },
    /// Returns the highest members.
    Top {
        /// The most members, 1 to 1,000.
        n: usize,
    },
    /// Returns a member and those right above and below it.
    Around {
        /// The member.
        member: String,
        /// The most members on each side, 1 to 100.
        n: usize,
    },
    /// Returns the number of members.
    Size,
}

/// A member with its rank and score.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The rank, from 1. Members with equal scores are ranked by their bytes, the lowest first.
    pub rank: u64,
    /// The member.
    pub member: String,
    /// The score. In a board with a window it is the sum over all buckets, never 0.
    pub score: i64,
}

/// The answer to a [`BoardOp`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoardReply {
    /// For an add or set, the new score; `None` if the member is not listed, because it was the lowest of too many or
    /// its score in the window is 0. For a removal, the score that it had.
    Score(Option<i64>),
    /// For a rank, top or around, members by rank; none if the member is not listed.
    Standings(Vec<Standing>),
    /// The number of members, also after an add of several.
    Size(u64),
}

impl Bucket {
    /// Returns the length of the bucket.
    pub const fn length(self) -> Duration {
        match self {
            Self::Minute => Duration::from_mins(1),
            Self::Hour => Duration::from_hours(1),
            Self::Day => Duration::from_hours(24),
        }
    }
}

impl BoardWindow {
    /// Returns the number of the bucket of an instant.
    pub(crate) fn number(self, now: Timestamp) -> u64 {
        now.as_ms() / self.bucket.length().as_millis() as u64
    }

    /// Returns the number of the bucket to add to. `newest` is the one that was added to last.
    pub(crate) fn current(self, newest: Option<u64>, now: Timestamp) -> u64 {
        let by_clock = self.number(now);
        newest
            .filter(|newest| (by_clock..by_clock + u64::from(self.buckets)).contains(newest))
            .unwrap_or(by_clock)
    }

    /// Returns the first bucket of the window that ends with `current`.
    pub(crate) fn first(self, current: u64) -> u64 {
        (current + 1).saturating_sub(self.buckets.into())
    }
}

impl BoardOp {
    /// Returns the highest score of a member in one bucket.
    pub(crate) fn bucket_max(&self) -> i64 {
        SCORE_MAX / self.window.map_or(1, |window| i64::from(window.buckets))
    }

    /// Returns the score in a bucket after an add.
    pub(crate) fn sum(&self, score: i64, by: i64) -> Result<i64> {
        let (sum, max) = (score.saturating_add(by), self.bucket_max());
        if (-max..=max).contains(&sum) {
            return Ok(sum);
        }
        Err(Error::invalid(format!("a score of {sum} is not within ±{max}")))
    }

    /// Returns the most members that are removed in a step that changes this many: as many, plus as many as have
    /// [`BOARD_CUT_ENTRIES`] entries.
    pub(crate) fn leave_max(&self, changed: usize) -> usize {
        changed + BOARD_CUT_ENTRIES / self.window.map_or(1, |window| usize::from(window.buckets))
    }

    /// Checks all limits.
    ///
    /// # Errors
    /// `Invalid` if one is broken.
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
