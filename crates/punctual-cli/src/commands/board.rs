//! `punctual board …`: leaderboards.

use std::io::Write as _;

use punctual::{Bucket, Leaderboard, Standing, limits::BOARD_MEMBERS_MAX};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{Format, Table, clean, json},
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Board {
    /// Add to a member's score.
    Add {
        #[command(flatten)]
        which: Which,
        /// Whose.
        member: String,
        /// So much.
        #[arg(default_value = "1", allow_negative_numbers = true)]
        by: i64,
        #[command(flatten)]
        room: Room,
    },
    /// Give a member a score, in place of all that it had.
    Set {
        #[command(flatten)]
        which: Which,
        /// Whose.
        member: String,
        /// This one.
        #[arg(allow_negative_numbers = true)]
        score: i64,
        #[command(flatten)]
        room: Room,
    },
    /// Take a member off the board.
    Rm {
        #[command(flatten)]
        which: Which,
        /// Whom.
        member: String,
    },
    /// The highest.
    Top {
        #[command(flatten)]
        which: Which,
        /// How many.
        #[arg(short, default_value = "10")]
        n: usize,
    },
    /// A member's rank.
    Rank {
        #[command(flatten)]
        which: Which,
        /// Whose.
        member: String,
    },
    /// A member, and those right above and below it.
    Around {
        #[command(flatten)]
        which: Which,
        /// Whom.
        member: String,
        /// How many on each side.
        #[arg(short, default_value = "5")]
        n: usize,
    },
}

/// A board. Another window is another board.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// The board.
    #[arg(value_name = "BOARD")]
    name: String,
    /// Of the last minutes, this one among them.
    #[arg(long, value_name = "N", conflicts_with_all = ["hours", "days"])]
    minutes: Option<u16>,
    /// Of the last hours, this one among them, by UTC.
    #[arg(long, value_name = "N", conflicts_with = "days")]
    hours: Option<u16>,
    /// Of the last days, this one among them, by UTC.
    #[arg(long, value_name = "N")]
    days: Option<u16>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Room {
    /// The most members it has; the lowest leave.
    #[arg(long = "members", default_value_t = BOARD_MEMBERS_MAX, value_name = "N")]
    members_max: u32,
}

impl Board {
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self, Self::Top { .. } | Self::Rank { .. } | Self::Around { .. })
    }

    pub(crate) const fn makes_a_store(&self) -> bool {
        matches!(self, Self::Add { .. } | Self::Set { .. })
    }
}

impl Which {
    fn board(&self, session: &Session) -> Leaderboard {
        let board = session.client.leaderboard(&self.name);
        match (self.minutes, self.hours, self.days) {
            (Some(minutes), ..) => board.last(minutes, Bucket::Minute),
            (None, Some(hours), _) => board.last(hours, Bucket::Hour),
            (None, None, Some(days)) => board.last(days, Bucket::Day),
            (None, None, None) => board,
        }
    }
}

/// A member as JSON.
#[derive(Serialize)]
struct View<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u64>,
    member: &'a str,
    /// None: it is not on the board.
    score: Option<i64>,
}

pub(crate) async fn run(session: &mut Session, command: &Board) -> Result {
    match command {
        Board::Add { which, member, by, room } => {
            let score = which.board(session).at_most(room.members_max).add(member, *by).await?;
            told(session, member, score)
        }
        Board::Set { which, member, score, room } => {
            let score = which.board(session).at_most(room.members_max).set(member, *score).await?;
            told(session, member, score)
        }
        Board::Rm { which, member } => match which.board(session).remove(member).await? {
            Some(_) if session.format.is_json() => told(session, member, None),
            Some(_) => Ok(writeln!(session.out, "removed {}", clean(member))?),
            None => Err(absent(which, member)),
        },
        Board::Top { which, n } => {
            let standings = which.board(session).top(*n).await?;
            table(session, &standings)
        }
        Board::Rank { which, member } => {
            let standing = which.board(session).standing(member).await?;
            table(session, &[standing.ok_or_else(|| absent(which, member))?])
        }
        Board::Around { which, member, n } => {
            let standings = which.board(session).around(member, *n).await?;
            if standings.is_empty() {
                return Err(absent(which, member));
            }
            table(session, &standings)
        }
    }
}

fn absent(which: &Which, member: &str) -> Failure {
    Failure::new("not_found", format!("{member:?} is not on board {:?}", which.name))
        .why("it was never added there, or has left: the lowest do, and of --minutes, --hours and --days who has nothing in them")
}

fn told(session: &mut Session, member: &str, score: Option<i64>) -> Result {
    let out = &mut session.out;
    if session.format.is_json() {
        return Ok(json(out, &View { rank: None, member, score })?);
    }
    match score {
        Some(score) => writeln!(out, "{}  {score}", clean(member))?,
        None => writeln!(out, "{}  not on the board", clean(member))?,
    }
    Ok(())
}

fn table(session: &mut Session, standings: &[Standing]) -> Result {
    let views =
        standings.iter().map(|is| View { rank: Some(is.rank), member: &is.member, score: Some(is.score) });
    let out = &mut session.out;
    match session.format {
        Format::Json => json(out, &views.collect::<Vec<_>>())?,
        Format::Ndjson => views.into_iter().try_for_each(|view| json(out, &view))?,
        Format::Ids => standings.iter().try_for_each(|is| writeln!(out, "{}", clean(&is.member)))?,
        Format::Human | Format::Wide => {
            let mut table = Table::new(["RANK", "MEMBER", "SCORE"]);
            for is in standings {
                table.row([is.rank.to_string(), is.member.clone(), is.score.to_string()]);
            }
            table.print(out)?;
        }
    }
    Ok(())
}
