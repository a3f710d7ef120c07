//! `punctual doctor`: checks the store's health and configuration.

use std::io::Write as _;

use punctual::store::CheckLevel;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{clean, json},
};

pub(super) async fn run(session: &mut Session) -> Result {
    let checks = session.client.store().doctor().await?;
    if session.format.is_json() {
        json(&mut session.out, &checks)?;
    } else {
        for check in &checks {
            let level = check.level.name();
            let style = session.paint.level(check.level);
            writeln!(session.out, "{style}{level:<4}{style:#}  {:<12}  {}", check.name, clean(&check.text))?;
            if let Some(fix) = &check.fix {
                writeln!(session.out, "      fix           {}", clean(fix))?;
            }
        }
    }
    session.out.flush()?;
    if checks.iter().any(|check| check.level == CheckLevel::Fail) { Err(Failure::FAILED) } else { Ok(()) }
}
