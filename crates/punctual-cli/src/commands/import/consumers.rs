//! Checks the other connections of the server. A consumer that pops entries during an import makes them run twice.

use std::collections::BTreeMap;

use super::server::Server;

/// Commands by which a queue is popped, and that wait for it.
const BLOCKING: [&str; 9] =
    ["blmove", "blmpop", "blpop", "brpop", "brpoplpush", "bzmpop", "bzpopmax", "bzpopmin", "xreadgroup"];
/// Those that don't wait, and scripts, which may do anything.
const POPPING: [&str; 12] = [
    "eval",
    "evalsha",
    "fcall",
    "lmove",
    "lpop",
    "lrem",
    "rpop",
    "rpoplpush",
    "spop",
    "zpopmin",
    "zrem",
    "zremrangebyscore",
];
/// Who did nothing for longer is none.
const IDLE_MAX_S: u64 = 60;

/// Returns a warning for each kind of other connection.
pub(super) async fn warnings(server: &Server) -> Vec<String> {
    let look = async {
        let own: u64 = server.say(redis::cmd("CLIENT").arg("ID")).await?;
        let list: String = server.say(redis::cmd("CLIENT").arg("LIST")).await?;
        crate::errors::Result::Ok((own, list))
    };
    match look.await {
        Ok((own, list)) => suspects(&list, own),
        Err(_) => vec![
            "the user of --from may not see who else is connected (CLIENT LIST): see yourself that \
                        no old consumer is left"
                .to_owned(),
        ],
    }
}

fn suspects(list: &str, own: u64) -> Vec<String> {
    let mut counts: BTreeMap<(bool, &str), u32> = BTreeMap::new();
    for line in list.lines() {
        let field = |name: &str| {
            line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
        };
        let (command, idle) = (field("cmd"), field("idle").parse().unwrap_or(0));
        let is_own = field("id").parse() == Ok(own);
        if is_own {
            continue;
        }
        let waits = BLOCKING.contains(&command);
        if waits || (POPPING.contains(&command) && idle < IDLE_MAX_S) {
            *counts.entry((waits, command)).or_default() += 1;
        }
    }
    let text = |((waits, command), n): (&(bool, &str), &u32)| {
        let who = if *n == 1 { "1 other connection".to_owned() } else { format!("{n} other connections") };
        if *waits {
            format!("{who} in {command}: stop the old consumers, or entries may run twice")
        } else {
            format!(
                "{who} called {command} last: if these are old consumers, stop them, or entries may run twice"
            )
        }
    };
    counts.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_pops_is_seen_and_who_pushes_is_not() {
        let list = "id=3 addr=/s:0 idle=0 cmd=client|list user=default\n\
            id=4 idle=900 flags=b cmd=blpop\nid=5 idle=2 cmd=blpop\nid=6 idle=3 cmd=zrem\nid=7 idle=300 cmd=zrem\n\
            id=8 idle=0 cmd=rpush\nid=9 idle=0 cmd=evalsha\n";
        let told = suspects(list, 9);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("1 other connection called zrem last"), "{told:?}");
        assert!(told[1].starts_with("2 other connections in blpop"), "{told:?}");
    }
}
