//! Rate limiters, a key for each key.

use crate::{
    core::{error::Result, rate::AHEAD_MAX_MS},
    store::{
        Allowance, Arithmetic, LimitOp,
        redis::{
            scripts::{SCRIPTS, reply::int},
            sharded::shard::{Shard, digits},
        },
    },
};

pub(crate) async fn limit(shard: &Shard, op: &LimitOp) -> Result<Allowance> {
    let (script, kind, args) = match op.rule.arithmetic() {
        Arithmetic::Log(log) => (
            &SCRIPTS.log,
            "log",
            vec![
                digits(log.max),
                digits(log.period_ms),
                digits(op.cost),
                digits(u64::from(log.counts_refused)),
            ],
        ),
        Arithmetic::Rate(rate) => (
            &SCRIPTS.gcra,
            "gcra",
            vec![
                digits(rate.max),
                digits(rate.period_ms),
                digits(rate.burst),
                digits(op.cost),
                digits(AHEAD_MAX_MS),
            ],
        ),
    };
    // A name has no NUL, so that no two of them meet.
    let key = shard.key(&format!("{kind}:{}\0{}", op.name, op.key));
    let wait = int(&shard.call_tool(script, &[key], args).await?)?;
    Ok(if wait == 0 { Allowance::Allowed } else { Allowance::until(wait.cast_unsigned(), 0) })
}
