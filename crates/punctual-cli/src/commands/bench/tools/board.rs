//! Measures leaderboards: speed, correctness of sums, and memory per member.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Instant,
};

use anyhow::{Context as _, Result};
use punctual::{
    store::Keep,
    toolkit::{Bucket, Leaderboard},
};

use super::{
    CALLERS, Place, Sizes, call,
    figures::{BoardFigures, LargeFigures},
    fresh_name, handmade, speed,
};

/// What is merged.
const HOURS: u16 = 24;
/// How many are asked for.
const TOP: usize = 10;
/// Members of a board whose speed is measured, unless those of memory are fewer.
pub(super) const MEMBERS: usize = 10_000;
/// Members whose sum is looked at: as many as one list shows.
const SUMMED: usize = 1_000;
/// Of so many adds there is one list where their speed is measured.
const ADDS_PER_TOP: usize = 100;
/// Lists of a large board.
const TOPS_LARGE: u32 = 5;

/// What is measured.
#[derive(Clone, Copy)]
pub(super) enum Board {
    /// Of the last hours.
    Hours,
    /// Of all time.
    Always,
    Handmade,
}

impl Board {
    pub(super) const ALL: [Self; 3] = [Self::Hours, Self::Always, Self::Handmade];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hours => "punctual",
            Self::Always => "punctual, all time",
            Self::Handmade => "script",
        }
    }

    /// One in this store, without members.
    async fn empty(self, place: &Place, store: &str) -> Result<Ready> {
        let ours = async || place.fresh(store, Keep::NOTHING).await;
        Ok(match self {
            Self::Hours => Ready::Ours(ours().await?.leaderboard("bench").last(HOURS, Bucket::Hour)),
            Self::Always => Ready::Ours(ours().await?.leaderboard("bench")),
            Self::Handmade => {
                let (server, prefix) = place.server().context("a script runs on Redis only")?;
                let prefix = format!("{prefix}{store}:");
                Ready::Handmade(handmade::Board::new(server.connection(), &prefix, HOURS))
            }
        })
    }

    /// One to which each of so many members was added.
    async fn full(self, place: &Place, members: usize) -> Result<Ready> {
        let board = self.empty(place, &fresh_name()).await?;
        board.fill(members).await?;
        Ok(board)
    }
}

/// One that is there.
#[derive(Clone)]
enum Ready {
    Ours(Leaderboard),
    Handmade(handmade::Board),
}

impl Ready {
    async fn add(&self, member: String, by: i64) -> Result<()> {
        match self {
            Self::Ours(board) => Ok(board.add(member, by).await.map(drop)?),
            Self::Handmade(board) => board.add(&member, by).await,
        }
    }

    /// The scores of the highest.
    async fn top(&self, n: usize) -> Result<Vec<i64>> {
        Ok(match self {
            Self::Ours(board) => board.top(n).await?.into_iter().map(|standing| standing.score).collect(),
            Self::Handmade(board) => board.top(n).await?.into_iter().map(|(_, score)| score).collect(),
        })
    }

    async fn fill(&self, members: usize) -> Result<()> {
        let board = self.clone();
        call(CALLERS, members, move |n| {
            let board = board.clone();
            async move { board.add(member(n), fastrand::i64(1..=1_000)).await }
        })
        .await
    }
}

fn member(n: usize) -> String {
    format!("member-{n}")
}

pub(super) async fn measure(place: &Place, sizes: &Sizes, subject: Board) -> Result<BoardFigures> {
    let adds = speed(place, sizes.calls, async |_| {
        let board = subject.empty(place, &fresh_name()).await?;
        Ok(move |_| {
            let board = board.clone();
            async move { board.add(member(fastrand::usize(..MEMBERS)), 1).await }
        })
    })
    .await?;
    let tops = speed(place, sizes.calls / ADDS_PER_TOP, async |_| {
        let board = subject.full(place, MEMBERS.min(sizes.keys)).await?;
        Ok(move |_| {
            let board = board.clone();
            async move { board.top(TOP).await.map(drop) }
        })
    })
    .await?;
    let is_sum_right = is_sum_right(subject.empty(place, &fresh_name()).await?, sizes.calls / 5).await?;
    let large = large(place, subject, sizes.keys).await?;
    Ok(BoardFigures { name: subject.name(), adds, tops, is_sum_right, large })
}

/// Whether all that was added at once is there.
async fn is_sum_right(board: Ready, adds: usize) -> Result<bool> {
    let total = Arc::new(AtomicI64::new(0));
    let (adding, added) = (board.clone(), Arc::clone(&total));
    call(CALLERS, adds, move |_| {
        let (board, added, by) = (adding.clone(), Arc::clone(&added), fastrand::i64(1..=100));
        async move {
            board.add(member(fastrand::usize(..SUMMED)), by).await?;
            added.fetch_add(by, Ordering::Relaxed);
            Ok(())
        }
    })
    .await?;
    Ok(board.top(SUMMED).await?.into_iter().sum::<i64>() == total.load(Ordering::Relaxed))
}

async fn large(place: &Place, subject: Board, members: usize) -> Result<LargeFigures> {
    let store = fresh_name();
    let board = subject.empty(place, &store).await?;
    let before = place.bytes(&store).await?;
    let each = |after: Option<u64>| {
        let used = after.zip(before).map(|(after, before)| after.saturating_sub(before));
        used.map(|used| used as f64 / members.max(1) as f64)
    };
    board.fill(members).await?;
    let bytes_per_member = each(place.bytes(&store).await?);
    let begin = Instant::now();
    for _ in 0..TOPS_LARGE {
        board.top(TOP).await?;
    }
    let top_ms = begin.elapsed().as_secs_f64() * 1e3 / f64::from(TOPS_LARGE);
    let bytes_per_member_listed = each(place.bytes(&store).await?);
    place.forget(&store).await?;
    Ok(LargeFigures { bytes_per_member, bytes_per_member_listed, top_ms })
}
