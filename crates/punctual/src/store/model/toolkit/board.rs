//! Leaderboards.

use std::collections::BTreeMap;

use crate::{
    core::{error::Result, time::Timestamp},
    store::{BoardAct, BoardOp, BoardReply, Standing},
};

use super::Tools;

/// What was added, by bucket; of a board without a window in one bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board {
    buckets: BTreeMap<u64, BTreeMap<String, i64>>,
    /// The bucket that was added to last.
    newest: Option<u64>,
}

impl Tools {
    pub(crate) fn board(&mut self, now: Timestamp, op: &BoardOp) -> Result<BoardReply> {
        let board = self.boards.entry((op.name.clone(), op.window)).or_default();
        let current = op.window.map_or(0, |window| window.current(board.newest, now));
        let first = op.window.map_or(0, |window| window.first(current));
        board.buckets.retain(|bucket, _| (first..=current).contains(bucket));
        match &op.act {
            BoardAct::Add { member, by, members_max } => {
                let score = op.sum(board.part(current, member), *by)?;
                board.put(current, member, score);
                board.cut(op, *members_max, 1);
                Ok(BoardReply::Score(board.score(op, member)))
            }
            BoardAct::AddAll { members, members_max } => {
                let scores = members.iter().map(|(member, by)| op.sum(board.part(current, member), *by));
                let scores = scores.collect::<Result<Vec<_>>>()?;
                for ((member, _), score) in members.iter().zip(scores) {
                    board.put(current, member, score);
                }
                board.cut(op, *members_max, members.len());
                Ok(BoardReply::Size(board.all(op).len() as u64))
            }
            BoardAct::Set { member, score, members_max } => {
                board.remove(member);
                board.put(current, member, *score);
                board.cut(op, *members_max, 1);
                Ok(BoardReply::Score(board.score(op, member)))
            }
            BoardAct::Remove { member } => {
                let had = board.score(op, member);
                board.remove(member);
                Ok(BoardReply::Score(had))
            }
            BoardAct::Rank { member } => Ok(BoardReply::Standings(
                board.all(op).into_iter().filter(|is| is.member == *member).collect(),
            )),
            BoardAct::Top { n } => {
                let mut all = board.all(op);
                all.truncate(*n);
                Ok(BoardReply::Standings(all))
            }
            BoardAct::Around { member, n } => {
                let all = board.all(op);
                let Some(at) = all.iter().position(|is| is.member == *member) else {
                    return Ok(BoardReply::Standings(vec![]));
                };
                let near = all[at.saturating_sub(*n)..all.len().min(at + n + 1)].to_vec();
                Ok(BoardReply::Standings(near))
            }
            BoardAct::Size => Ok(BoardReply::Size(board.all(op).len() as u64)),
        }
    }
}

impl Board {
    /// What a member has in a bucket.
    fn part(&self, bucket: u64, member: &str) -> i64 {
        let bucket = self.buckets.get(&bucket);
        bucket.and_then(|bucket| bucket.get(member)).copied().unwrap_or_default()
    }

    fn put(&mut self, bucket: u64, member: &str, score: i64) {
        self.buckets.entry(bucket).or_default().insert(member.to_owned(), score);
        self.newest = Some(bucket);
    }

    fn remove(&mut self, member: &str) {
        for bucket in self.buckets.values_mut() {
            bucket.remove(member);
        }
    }

    /// Lets the lowest leave a board that has too many, as many as one step does where so many were changed.
    fn cut(&mut self, op: &BoardOp, members_max: u32, changed: usize) {
        let all = self.all(op);
        let too_many = all.len().saturating_sub(members_max as usize);
        for low in all.into_iter().rev().take(too_many.min(op.leave_max(changed))) {
            self.remove(&low.member);
        }
    }

    fn score(&self, op: &BoardOp, member: &str) -> Option<i64> {
        self.all(op).into_iter().find(|is| is.member == member).map(|is| is.score)
    }

    /// Everybody, the highest first.
    fn all(&self, op: &BoardOp) -> Vec<Standing> {
        let mut sums = BTreeMap::<&String, i64>::new();
        for (member, score) in self.buckets.values().flatten() {
            *sums.entry(member).or_default() += score;
        }
        let is_on_it = |(_, score): &(&String, i64)| op.window.is_none() || *score != 0;
        let mut all: Vec<(&String, i64)> = sums.into_iter().filter(is_on_it).collect();
        all.sort_by_key(|(member, score)| (-score, *member));
        let ranks = all.into_iter().zip(1..);
        ranks.map(|((member, score), rank)| Standing { rank, member: member.clone(), score }).collect()
    }
}
