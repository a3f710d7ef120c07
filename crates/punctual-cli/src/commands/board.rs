//! `punctual board …`: keeps leaderboards.

use std::io::Write as _;

use punctual::{
    limits::BOARD_MEMBERS_MAX,
    toolkit::{Bucket, Leaderboard, Standing},
};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{Format, Table, clean, json},
};

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
A leaderboard keeps the scores of its members in order. With --minutes, --hours or --days it counts only what was added in \
that time. Each such window is a board of its own, so that every command on it needs the same option.

Examples:
  punctual board add sales ana 250 --days 7
  punctual board top sales --days 7
  punctual board around sales ana --days 7")]
pub(crate) enum Board {
    /// Add to the score of a member.
    #[command(after_help = "\
Examples:
  punctual board add sales ana
  punctual board add sales ana 250 --days 7
  punctual board add sales bo -20")]
    Add {
        #[command(flatten)]
        which: Which,
        /// Name of the member.
        member: String,
        /// Number to add; it can be negative (default: 1).
        #[arg(default_value = "1", hide_default_value = true, allow_negative_numbers = true)]
        by: i64,
        #[command(flatten)]
        room: Room,
    },
    /// Replace the score of a member.
    #[command(after_help = "\
Examples:
  punctual board set sales ana 1000
  punctual board set sales ana 0 --days 7")]
    Set {
        #[command(flatten)]
        which: Which,
        /// Name of the member.
        member: String,
        /// New score; it can be negative.
        #[arg(allow_negative_numbers = true)]
        score: i64,
        #[command(flatten)]
        room: Room,
    },
    /// Remove a member from the board.
    #[command(after_help = "\
Examples:
  punctual board rm sales ana
  punctual board rm sales ana --days 7")]
    Rm {
        #[command(flatten)]
        which: Which,
        /// Name of the member.
        member: String,
    },
    /// Print the members with the highest scores.
    #[command(after_help = "\
Examples:
  punctual board top sales
  punctual board top sales -n 3 --hours 24 -o json")]
    Top {
        #[command(flatten)]
        which: Which,
        /// Number of members (default: 10).
        #[arg(short, default_value = "10", hide_default_value = true)]
        n: usize,
    },
    /// Print the rank and score of a member.
    #[command(after_help = "\
Examples:
  punctual board rank sales ana
  punctual board rank sales ana --days 7")]
    Rank {
        #[command(flatten)]
        which: Which,
        /// Name of the member.
        member: String,
    },
    /// Print a member and its neighbours by rank.
    #[command(after_help = "\
Examples:
  punctual board around sales ana
  punctual board around sales ana -n 2 --days 7")]
    Around {
        #[command(flatten)]
        which: Which,
        /// Name of the member.
        member: String,
        /// Number of neighbours on each side (default: 5).
        #[arg(short, default_value = "5", hide_default_value = true)]
        n: usize,
    },
}

/// A board. Another window is another board.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Name of the board.
    #[arg(value_name = "BOARD")]
    name: String,
    /// Window: the last N minutes, including the current one.
    #[arg(long, value_name = "N", conflicts_with_all = ["hours", "days"])]
    minutes: Option<u16>,
    /// Window: the last N hours, including the current one.
    #[arg(long, value_name = "N", conflicts_with = "days")]
    hours: Option<u16>,
    /// Window: the last N days in UTC, including today.
    #[arg(long, value_name = "N")]
    days: Option<u16>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Room {
    /// Number of members that the board keeps; the lowest are removed (default: 1,000,000).
    #[arg(long = "members", default_value_t = BOARD_MEMBERS_MAX, hide_default_value = true, value_name = "N")]
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
    Failure::not_found(format!("{member:?} is not on board {:?}", which.name))
        .why("the member was never added, or was removed: a full board removes the lowest, and a window removes what is older")
        .hint("check --minutes, --hours and --days: each window is a board of its own")
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
