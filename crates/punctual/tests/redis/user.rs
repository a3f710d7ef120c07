//! Whom the server lets in: the user of the guide, which the other tests come as, has all rights that a store needs, and no
//! others.

use std::collections::BTreeSet;

use punctual::{
    ErrorKind,
    store::{Durability, Store, clock::Clock, redis::RedisStore},
};

use crate::{
    open,
    server::{self, Server},
    tls::refusal,
};

/// The user of the guide may do nothing that no script and no connection does.
#[test]
fn the_user_of_the_guide_is_minimal() {
    let lua = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/lua");
    let mut needed =
        BTreeSet::from(["bzpopmin", "evalsha", "info", "pexpire", "script|load", "type"].map(str::to_owned));
    let mut paths = vec![lua];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let calls = text.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
        needed.extend(calls.map(str::to_lowercase));
    }
    let line = server::acl::line("always");
    let granted = line.split(' ').filter_map(|word| word.strip_prefix('+').map(str::to_owned));
    assert_eq!(granted.collect::<BTreeSet<_>>(), needed);
}

/// `full` needs the right to ask for settings, and is refused without it instead of pretended.
#[tokio::test]
async fn a_level_that_can_not_be_checked_is_refused() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    server.admit(&["always"]);
    let url = server.url() + "&durability=full";
    assert_eq!(refusal(&url).await.0, ErrorKind::Unsupported);
    server.admit(&["for durability=full"]);
    assert_eq!(open(&url).await.durability(), Durability::Full);
}

/// Keys of others are out of reach for the user of the guide.
#[tokio::test]
async fn another_prefix_is_refused() {
    let url = Server::shared().url().replace("prefix=t", "prefix=other");
    let error = RedisStore::open(&url, Clock::System).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("user"), "{error:?}");
}
