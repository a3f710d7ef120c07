//! What ran in the last hour, as `stats` and `top` tell it.

use punctual::{LastHour, Ran};

use super::Session;
use crate::output::{Table, clean, cut, grouped};

/// Of each sort so many are told.
pub(super) const SHOWN: usize = 5;
/// What people are told beside it.
pub(super) const NOTE: &str = "a worker that crashes may take its last second with it";
/// Characters of a name.
const NAME_CHARS: usize = 60;

/// Reads it; `None`: the store doesn't tell, which is said, and is no reason to tell nothing at all.
pub(super) async fn read(session: &Session) -> Option<LastHour> {
    match session.client.last_hour(SHOWN).await {
        Ok(hour) => Some(hour),
        Err(error) => {
            session.say(&format!("what ran in the last hour is not told: {}", clean(&error.to_string())));
            None
        }
    }
}

/// A table of each sort of which there are any: kinds, groups, errors.
pub(super) fn tables(hour: &LastHour) -> impl Iterator<Item = Table> {
    let kinds = (!hour.kinds.is_empty()).then(|| table("KIND", &hour.kinds));
    let groups = (!hour.groups.is_empty()).then(|| {
        let mut table = Table::new(["RUNS/1H", "GROUP", "QUEUE"]);
        for ran in &hour.groups {
            let queue = ran.queue.as_deref().unwrap_or_default();
            table.row([grouped(ran.runs), cut(&ran.name, NAME_CHARS), cut(queue, NAME_CHARS)]);
        }
        table
    });
    let errors = (!hour.errors.is_empty()).then(|| table("ERROR", &hour.errors));
    [kinds, groups, errors].into_iter().flatten()
}

fn table(what: &str, all: &[Ran]) -> Table {
    let mut table = Table::new(["RUNS/1H", what]);
    for ran in all {
        table.row([grouped(ran.runs), cut(&ran.name, NAME_CHARS)]);
    }
    table
}
