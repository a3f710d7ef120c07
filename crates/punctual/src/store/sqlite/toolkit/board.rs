//! Leaderboards: members in the order of an index, and what a window is the sum of.
//!
//! Before a board with a window is read or changed its cold buckets are taken off, in slices: so what is read is exact, and no
//! step is long.

use rusqlite::{CachedStatement, OptionalExtension, params};

use super::forgotten_at;
use crate::store::{
    BoardAct, BoardOp, BoardReply, Standing,
    sqlite::engine::{
        fault::Step,
        sql::named,
        tx::{Tx, int},
    },
};

const FILE: &str = include_str!("../sql/board.sql");
const BOARD: &str = named(FILE, "board");
const NEW_BOARD: &str = named(FILE, "new_board");
const PUT_BOARD: &str = named(FILE, "put_board");
const PUT_SIZE: &str = named(FILE, "put_size");
const LOW: &str = named(FILE, "low");
const PUT_LOW: &str = named(FILE, "put_low");
const REMOVE_LOW: &str = named(FILE, "remove_low");
const PART: &str = named(FILE, "part");
const PUT_PART: &str = named(FILE, "put_part");
const REMOVE_PART: &str = named(FILE, "remove_part");
const COLD_BEFORE: &str = named(FILE, "cold_before");
const COLD_BEHIND: &str = named(FILE, "cold_behind");
const LOWEST: &str = named(FILE, "lowest");
const ABOVE: &str = named(FILE, "above");
const FROM: &str = named(FILE, "from");
const BEFORE: &str = named(FILE, "before");
const TOP: &str = named(FILE, "top");
const PAST: &str = named(FILE, "past");
const SIZE: &str = named(FILE, "size");
const FORGET_SCORES: &str = named(FILE, "forget_scores");
const FORGET_BOARD: &str = named(FILE, "forget_board");

/// Entries that one step takes off a board.
const SLICE: i64 = 1_000;
/// Entries of a board that is past that a step on another one removes by the way.
const FORGET_MAX: i64 = 100;

/// A board as a step finds it.
struct Board {
    /// None: nobody was ever added.
    bid: Option<i64>,
    newest: i64,
    size: i64,
    /// The buckets that it merges, the last of which is added to.
    first: i64,
    current: i64,
}

/// Makes a step; `None`: something had to be taken off first, so make it again.
pub(crate) fn change(tx: &Tx<'_>, op: &BoardOp) -> Step<Option<BoardReply>> {
    let mut board = find(tx, op)?;
    if take_off(tx, op, &mut board)? {
        return Ok(None);
    }
    match &op.act {
        BoardAct::Add { member, by, members_max } => {
            let (score, sum) = board.sums(tx, op, member, *by)?;
            board.put(tx, op, member, score, sum)?;
            board.cut(tx, op, *members_max, 1)?;
        }
        BoardAct::AddAll { members, members_max } => {
            let sums = members.iter().map(|(member, by)| board.sums(tx, op, member, *by));
            let sums = sums.collect::<Step<Vec<_>>>()?;
            for ((member, _), (score, sum)) in members.iter().zip(sums) {
                board.put(tx, op, member, score, sum)?;
            }
            board.cut(tx, op, *members_max, members.len())?;
            forget(tx)?;
            return Ok(Some(BoardReply::Size(board.size.max(0).cast_unsigned())));
        }
        BoardAct::Set { member, score, members_max } => {
            board.remove(tx, op, member)?;
            board.put(tx, op, member, *score, *score)?;
            board.cut(tx, op, *members_max, 1)?;
        }
        BoardAct::Remove { member } => {
            let had = board.low(tx, member)?.map(|low| -low);
            board.remove(tx, op, member)?;
            return Ok(Some(BoardReply::Score(had)));
        }
        BoardAct::Rank { .. } | BoardAct::Top { .. } | BoardAct::Around { .. } | BoardAct::Size => {
            return Ok(None);
        }
    }
    let (BoardAct::Add { member, .. } | BoardAct::Set { member, .. }) = &op.act else { return Ok(None) };
    forget(tx)?;
    Ok(Some(BoardReply::Score(board.low(tx, member)?.map(|low| -low))))
}

/// Reads a board; `None`: something must be taken off first, by [`change`].
pub(crate) fn read(tx: &Tx<'_>, op: &BoardOp) -> Step<Option<BoardReply>> {
    let board = find(tx, op)?;
    if !cold(tx, op, &board, 1)?.is_empty() {
        return Ok(None);
    }
    let Some(bid) = board.bid else {
        let is_size = op.act == BoardAct::Size;
        return Ok(Some(if is_size { BoardReply::Size(0) } else { BoardReply::Standings(vec![]) }));
    };
    let standings = match &op.act {
        BoardAct::Top { n } => standings(tx.conn.prepare_cached(TOP)?, params![bid, int(*n)])?,
        BoardAct::Rank { member } | BoardAct::Around { member, .. } => {
            let n = if let BoardAct::Around { n, .. } = &op.act { *n } else { 0 };
            let Some(low) = board.low(tx, member)? else {
                return Ok(Some(BoardReply::Standings(vec![])));
            };
            let mut near = standings(tx.conn.prepare_cached(BEFORE)?, params![bid, low, member, int(n)])?;
            near.reverse();
            near.extend(standings(tx.conn.prepare_cached(FROM)?, params![bid, low, member, int(n + 1)])?);
            let first = (near[0].0.clone(), -near[0].1);
            let above: i64 =
                tx.conn.prepare_cached(ABOVE)?.query_row(params![bid, first.1, first.0], |row| row.get(0))?;
            return Ok(Some(ranked(near, above.cast_unsigned() + 1)));
        }
        _ => return Ok(Some(BoardReply::Size(board.size.max(0).cast_unsigned()))),
    };
    Ok(Some(ranked(standings, 1)))
}

fn standings(mut stmt: CachedStatement<'_>, params: impl rusqlite::Params) -> Step<Vec<(String, i64)>> {
    let rows = stmt.query_map(params, |row| Ok((row.get(0)?, -row.get::<_, i64>(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn ranked(members: Vec<(String, i64)>, from: u64) -> BoardReply {
    let ranks = members.into_iter().zip(from..);
    BoardReply::Standings(ranks.map(|((member, score), rank)| Standing { rank, member, score }).collect())
}

/// The length of a bucket, and how many: how a board is found besides by its name.
fn shape(op: &BoardOp) -> (i64, i64) {
    op.window.map_or((0, 0), |window| (window.bucket.length().as_millis() as i64, window.buckets.into()))
}

fn find(tx: &Tx<'_>, op: &BoardOp) -> Step<Board> {
    let (bucket, buckets) = shape(op);
    let found = tx
        .conn
        .prepare_cached(BOARD)?
        .query_row(params![op.name, bucket, buckets], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (bid, newest, size) = found.map_or((None, 0, 0), |(bid, newest, size)| (Some(bid), newest, size));
    let (first, current) = op.window.map_or((0, 0), |window| {
        let newest = bid.map(|_: i64| i64::cast_unsigned(newest));
        let current = window.current(newest, tx.now);
        (window.first(current).cast_signed(), current.cast_signed())
    });
    Ok(Board { bid, newest, size, first, current })
}

/// Parts of buckets that are merged no more.
fn cold(tx: &Tx<'_>, op: &BoardOp, board: &Board, at_most: i64) -> Step<Vec<(i64, String, i64)>> {
    let (Some(bid), true) = (board.bid, op.window.is_some()) else { return Ok(vec![]) };
    let mut found = Vec::new();
    for (sql, bound) in [(COLD_BEFORE, board.first), (COLD_BEHIND, board.current)] {
        let mut stmt = tx.conn.prepare_cached(sql)?;
        let rows = stmt.query_map(params![bid, bound, at_most - int(found.len())], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        found.extend(rows.collect::<Result<Vec<_>, _>>()?);
    }
    Ok(found)
}

/// Takes cold parts off; answers whether there were any.
fn take_off(tx: &Tx<'_>, op: &BoardOp, board: &mut Board) -> Step<bool> {
    let cold = cold(tx, op, board, SLICE)?;
    if cold.is_empty() {
        return Ok(false);
    }
    board.subtract(tx, &cold)?;
    tx.conn.prepare_cached(PUT_SIZE)?.execute(params![board.bid, board.size])?;
    Ok(true)
}

/// What was added to a member in the current bucket.
fn part(tx: &Tx<'_>, board: &Board, member: &str) -> Step<i64> {
    let mut stmt = tx.conn.prepare_cached(PART)?;
    let score = stmt.query_row(params![board.bid, board.current, member], |row| row.get(0)).optional()?;
    Ok(score.unwrap_or_default())
}

impl Board {
    /// A member's score, negated, if it is on the board.
    fn low(&self, tx: &Tx<'_>, member: &str) -> Step<Option<i64>> {
        let mut stmt = tx.conn.prepare_cached(LOW)?;
        Ok(stmt.query_row(params![self.bid, member], |row| row.get(0)).optional()?)
    }

    /// A member's score in the current bucket when this is added to it, and the sum of all buckets then.
    fn sums(&self, tx: &Tx<'_>, op: &BoardOp, member: &str, by: i64) -> Step<(i64, i64)> {
        let sum = self.low(tx, member)?.map_or(0, |low| -low);
        let had = if op.window.is_some() { part(tx, self, member)? } else { sum };
        let score = op.sum(had, by)?;
        Ok((score, sum + score - had))
    }

    /// Takes parts off the sums: bucket, member, score.
    fn subtract(&mut self, tx: &Tx<'_>, parts: &[(i64, String, i64)]) -> Step<()> {
        for (bucket, member, score) in parts {
            let sum = self.low(tx, member)?.map_or(0, |low| -low) - *score;
            self.put_sum(tx, true, member, sum)?;
            tx.conn.prepare_cached(REMOVE_PART)?.execute(params![self.bid, bucket, member])?;
        }
        Ok(())
    }

    /// Puts a member on the board with this sum, or takes it off where it has none.
    fn put_low(&mut self, tx: &Tx<'_>, op: &BoardOp, member: &str, sum: i64) -> Step<()> {
        self.put_sum(tx, op.window.is_some(), member, sum)
    }

    fn put_sum(&mut self, tx: &Tx<'_>, has_window: bool, member: &str, sum: i64) -> Step<()> {
        let was_on_it = self.low(tx, member)?.is_some();
        if has_window && sum == 0 {
            tx.conn.prepare_cached(REMOVE_LOW)?.execute(params![self.bid, member])?;
            self.size -= i64::from(was_on_it);
        } else {
            tx.conn.prepare_cached(PUT_LOW)?.execute(params![self.bid, member, -sum])?;
            self.size += i64::from(!was_on_it);
        }
        Ok(())
    }

    /// Gives a member this score in the current bucket, and this sum.
    fn put(&mut self, tx: &Tx<'_>, op: &BoardOp, member: &str, score: i64, sum: i64) -> Step<()> {
        let (bucket, buckets) = shape(op);
        if self.bid.is_none() {
            let mut stmt = tx.conn.prepare_cached(NEW_BOARD)?;
            self.bid = Some(stmt.query_row(params![op.name, bucket, buckets], |row| row.get(0))?);
        }
        if op.window.is_some() && score != 0 {
            tx.conn.prepare_cached(PUT_PART)?.execute(params![self.bid, self.current, member, score])?;
        } else if op.window.is_some() {
            tx.conn.prepare_cached(REMOVE_PART)?.execute(params![self.bid, self.current, member])?;
        }
        self.put_low(tx, op, member, sum)?;
        self.newest = self.current;
        self.store(tx, op)
    }

    fn store(&self, tx: &Tx<'_>, op: &BoardOp) -> Step<()> {
        let (bucket, buckets) = shape(op);
        let ends = op.window.map(|_| self.newest.saturating_add(buckets).saturating_mul(bucket));
        tx.conn.prepare_cached(PUT_BOARD)?.execute(params![self.bid, self.newest, self.size, ends])?;
        Ok(())
    }

    /// Takes a member off the board, with all that it had.
    fn remove(&mut self, tx: &Tx<'_>, op: &BoardOp, member: &str) -> Step<()> {
        if op.window.is_some() {
            for bucket in self.first..=self.current {
                tx.conn.prepare_cached(REMOVE_PART)?.execute(params![self.bid, bucket, member])?;
            }
        }
        if 0 < tx.conn.prepare_cached(REMOVE_LOW)?.execute(params![self.bid, member])? {
            self.size -= 1;
            tx.conn.prepare_cached(PUT_SIZE)?.execute(params![self.bid, self.size])?;
        }
        Ok(())
    }

    /// Lets the lowest leave a board that has too many, as many as one step does where so many were changed.
    fn cut(&mut self, tx: &Tx<'_>, op: &BoardOp, members_max: u32, changed: usize) -> Step<()> {
        let too_many = self.size - i64::from(members_max);
        if too_many <= 0 {
            return Ok(());
        }
        let at_most = int(op.leave_max(changed));
        let lowest: Vec<String> = {
            let mut stmt = tx.conn.prepare_cached(LOWEST)?;
            let rows = stmt.query_map(params![self.bid, too_many.min(at_most)], |row| row.get(0))?;
            rows.collect::<Result<_, _>>()?
        };
        for member in &lowest {
            self.remove(tx, op, member)?;
        }
        Ok(())
    }
}

/// Takes a part off a board that was past a day ago: whoever comes back to it finds sums of what is left.
fn forget(tx: &Tx<'_>) -> Step<()> {
    let past = tx.conn.prepare_cached(PAST)?.query_row([forgotten_at(tx)], |row| row.get(0)).optional()?;
    let Some(bid): Option<i64> = past else { return Ok(()) };
    let parts: Vec<(i64, String, i64)> = {
        let mut stmt = tx.conn.prepare_cached(COLD_BEFORE)?;
        let rows = stmt.query_map(params![bid, i64::MAX, FORGET_MAX], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        rows.collect::<Result<_, _>>()?
    };
    if parts.is_empty() {
        tx.conn.prepare_cached(FORGET_SCORES)?.execute([bid])?;
        tx.conn.prepare_cached(FORGET_BOARD)?.execute([bid])?;
        return Ok(());
    }
    let size = tx.conn.prepare_cached(SIZE)?.query_row([bid], |row| row.get(0))?;
    let mut board = Board { bid: Some(bid), newest: 0, size, first: 0, current: 0 };
    board.subtract(tx, &parts)?;
    tx.conn.prepare_cached(PUT_SIZE)?.execute(params![bid, board.size])?;
    Ok(())
}
