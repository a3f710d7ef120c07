//! What ran in the last hour, as `stats` and `top` print it.

use punctual::toolkit::{LastHour, Ran};

use super::Session;
use crate::output::{Table, clean, cut, grouped};

/// The number of rows of each table.
pub(super) const SHOWN: usize = 5;
/// A note that is printed next to the tables.
pub(super) const NOTE: &str = "a worker that crashes may lose its last second";
/// Characters of a name.
const NAME_CHARS: usize = 60;

/// Reads what ran in the last hour. Returns `None` after a warning if the store does not answer; the command goes on.
pub(super) async fn read(session: &Session) -> Option<LastHour> {
    match session.client.last_hour(SHOWN).await {
        Ok(hour) => Some(hour),
        Err(error) => {
            session.say(&format!(
                "warning: could not read what ran in the last hour: {}",
                clean(&error.to_string())
            ));
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
