//! What is refused when a store is opened.

use punctual::{
    Client, ErrorKind,
    store::{Store, clock::Clock, redis::RedisStore},
};

use crate::{jobs, open, server::Server};

/// Promises that a server would break are refused when the store is opened, and so are keys that are somebody else's.
#[tokio::test]
async fn what_is_wrong_with_a_server_is_said_when_it_is_opened() {
    let open = |url: String| async move { RedisStore::open(&url, Clock::System).await };
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let error = open(server.url()).await.unwrap_err();
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Unsupported, true), "{error:?}");
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let allowed = open(server.url() + "&eviction=allowed").await.unwrap();
    assert!(allowed.url().ends_with("&eviction=allowed"), "{}", allowed.url());

    let error = open(Server::start(&["--cluster-enabled", "yes"]).url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("cluster"), "{error}");

    let server = Server::start(&[]);
    let url = server.url();
    let prefix = url.split_once("prefix=").unwrap().1;
    let mut other = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let () = redis::cmd("SET").arg(format!("{prefix}:{{0}}:t")).arg("mine").query(&mut other).unwrap();
    let error = open(url.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Corrupt, true), "{error:?}");
    assert!(error.to_string().contains(&format!("\"{prefix}:{{0}}:t\" is a string")), "{error}");
}

/// A server that has taken over can have other settings. Here it is the same one, to which the connections are made again.
#[tokio::test]
async fn a_server_is_checked_again_with_each_connection() {
    let server = Server::start(&["--maxmemory", "100mb"]);
    let store = open(&server.url()).await;
    store.now().await.unwrap();
    let mut other = redis::Client::open(server.url().as_str()).unwrap().get_connection().unwrap();
    let mut set = |policy: &str| {
        let () =
            redis::cmd("CONFIG").arg("SET").arg("maxmemory-policy").arg(policy).query(&mut other).unwrap();
        let _: i64 = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes")
            .query(&mut other)
            .unwrap();
    };
    set("allkeys-lru");
    // The first calls can meet the connection that was cut.
    let mut answer = store.now().await;
    while answer.as_ref().is_err_and(punctual::Error::is_repeatable) {
        answer = store.now().await;
    }
    let error = answer.unwrap_err();
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Unsupported, true), "{error:?}");
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    set("noeviction");
    while let Err(error) = store.now().await {
        assert!(error.is_repeatable() || error.kind() == ErrorKind::Unsupported, "{error:?}");
    }
}

/// What the server doesn't let a user ask is not held against it.
#[tokio::test]
async fn a_user_who_may_not_ask_about_the_server_may_work_on_it() {
    let ana = ["--user", "ana", "on", ">secret", "~*", "+@all", "-info", "-type", "-config"];
    let server = Server::start(&ana);
    let url = server.url() + "&user=ana&pass=secret";
    let client = Client::new(open(&url).await);
    client.push(jobs(&client, 1)).await.unwrap();
    assert_eq!(client.count(None).await.unwrap().waiting, 1);
}
