//! `limit check`, `lock run|ls|show|release`, `board add|set|rm|top|rank|around`.

use crate::fixture::Cli;

#[test]
fn a_limiter_says_by_its_exit_code_whether_something_may_be_done() {
    let t = Cli::new();
    for _ in 0..2 {
        assert_eq!(t.ok("limit check login ana --max 2 --per 1h"), "allowed\n");
    }
    let refused = t.run("limit check login ana --max 2 --per 1h");
    assert_eq!((refused.code, &*refused.err), (Some(4), ""));
    assert!(refused.out.starts_with("refused  retry in "), "{refused:?}");
    let said = t.run("limit check login ana --max 2 --per 1h --json");
    let view = &said.lines()[0];
    assert_eq!((said.code, &view["allowed"]), (Some(4), &false.into()));
    assert!((1..=3_600_000).contains(&view["retry_after_ms"].as_u64().unwrap()), "{view}");
    assert_eq!(
        t.json("limit check login ben --max 2 --per 1h --cost 2"),
        serde_json::json!({"allowed": true})
    );
    assert_eq!(t.ok("limit check login ana --max 2 --per 1h --gcra 3 --cost 3"), "allowed\n");
    assert_eq!(t.run("limit check login ana --max 2 --per 1h --gcra 3").code, Some(4));
    t.run("limit check login ana --max 0 --per 1h").fails(2, "invalid", "a limit of 0 is not within");
    t.run("limit check login ana --max 1").is_usage("--per");
}

#[cfg(unix)]
#[test]
fn a_command_runs_under_a_lock() {
    let t = Cli::new();
    let said =
        t.args(&["lock", "run", "nightly", "--", "sh", "-c", "echo $PUNCTUAL_LOCK $PUNCTUAL_FENCE; exit 7"]);
    assert_eq!(said.code, Some(7), "{said:?}");
    let fence: u64 = said.out.strip_prefix("nightly ").unwrap().trim().parse().unwrap();
    assert_eq!(t.ok("lock ls -o ids"), "");
    t.run("lock show nightly").fails(3, "not_found", "lock \"nightly\" is not held");
    // While it is held, another one finds it taken; an operator may free it.
    let inner = "lock run nightly -- true";
    let show = t.command("lock show nightly --json".split(' '));
    let (mut taken, mut release) =
        (t.command(inner.split(' ')), t.command("lock release nightly".split(' ')));
    let script = |command: &std::process::Command| {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
    };
    let under = format!("{} && {}; {}", script(&show), script(&taken), script(&release));
    let said = t.args(&["lock", "run", "nightly", "--", "sh", "-c", &under]);
    assert!(said.out.contains("released nightly"), "{said:?}");
    assert!(said.err.contains("lock \"nightly\" is held by another process, for "), "{said:?}");
    assert!(said.err.contains("lost lock \"nightly\" while the command ran"), "{said:?}");
    assert_eq!(said.code, Some(124));
    let held: serde_json::Value = serde_json::from_str(said.out.lines().next().unwrap()).unwrap();
    assert!(fence < held["fence"].as_u64().unwrap() && held["left_ms"].as_u64().unwrap() <= 30_000);
    assert_eq!(taken.status().unwrap().code(), Some(0));
    assert_eq!(release.status().unwrap().code(), Some(3));
    t.run("lock run nightly -- no-such-program").fails(127, "failed", "could not start no-such-program");
    t.run("lock run nightly").is_usage("COMMAND");
    t.run("lock run nightly --lease 1ms -- true").fails(
        2,
        "invalid",
        "the lease of a lock of 1ms is not within",
    );
}

#[test]
fn a_board_shows_who_stands_where() {
    let t = Cli::new();
    assert_eq!(t.ok("board add posts a 3"), "a  3\n");
    assert_eq!(t.ok("board add posts b"), "b  1\n");
    assert_eq!(t.ok("board add posts c -2"), "c  -2\n");
    assert_eq!(t.json("board set posts d 7"), serde_json::json!({"member": "d", "score": 7}));
    assert_eq!(
        t.ok("board top posts -n 2"),
        "RANK  MEMBER  SCORE\n   1  d           7\n   2  a           3\n"
    );
    assert_eq!(t.ok("board top posts -o ids"), "d\na\nb\nc\n");
    assert_eq!(t.json("board rank posts b"), serde_json::json!([{"rank": 3, "member": "b", "score": 1}]));
    assert_eq!(t.ok("board around posts b -n 1 -o ids"), "a\nb\nc\n");
    assert_eq!(t.ok("board rm posts a"), "removed a\n");
    t.run("board rank posts a").fails(3, "not_found", "\"a\" is not on board \"posts\"");
    t.run("board rm posts a").fails(3, "not_found", "\"a\" is not on board \"posts\"");
    assert_eq!(t.ok("board add posts z -9 --members 3"), "z  not on the board\n");
    assert_eq!(t.ok("board top posts --hours 24"), "RANK  MEMBER  SCORE\n");
    assert_eq!(t.ok("board add posts a 5 --hours 24"), "a  5\n");
    assert_eq!(t.ok("board top posts --hours 24 -o ids"), "a\n");
    t.run("board top posts --hours 169").fails(
        2,
        "invalid",
        "a number of buckets of 169 is not within 1 to 168",
    );
    t.run("board top posts --hours 1 --days 1").is_usage("--days");
    assert_eq!(t.ok("board add posts a 2 --minutes 60"), "a  2\n");
    assert_eq!(t.ok("board top posts --minutes 60 -o ids"), "a\n");
    t.run("board top posts --minutes 60 --hours 1").is_usage("--hours");
    assert_eq!(t.ok("board top $kinds --minutes 60 -o ids"), "");
    t.run("board add $kinds mine --minutes 60").fails(
        2,
        "invalid",
        "board names that begin with `$` are reserved",
    );
}
