//! Leaderboards.

use punctual::{
    ErrorKind,
    store::{BoardAct, BoardOp, BoardReply, BoardWindow, ToolOp, ToolReply},
    toolkit::Bucket,
};

use crate::fixture::{Fixture, at, secs};

const HOUR: u64 = 3_600;
const LAST_3_HOURS: Option<BoardWindow> = Some(BoardWindow { bucket: Bucket::Hour, buckets: 3 });

async fn ask(t: &Fixture, window: Option<BoardWindow>, act: BoardAct) -> BoardReply {
    let op = BoardOp { name: "posts".to_owned(), window, act };
    match t.store.tool(&ToolOp::Board(op)).await.unwrap() {
        ToolReply::Board(said) => said,
        other => panic!("{other:?}"),
    }
}

fn add_of(member: &str, by: i64) -> BoardAct {
    BoardAct::Add { member: member.to_owned(), by, members_max: 1_000_000 }
}

fn set_of(member: &str, score: i64) -> BoardAct {
    BoardAct::Set { member: member.to_owned(), score, members_max: 1_000_000 }
}

fn remove_of(member: &str) -> BoardAct {
    BoardAct::Remove { member: member.to_owned() }
}

/// The score that a change answers.
async fn score(t: &Fixture, window: Option<BoardWindow>, act: BoardAct) -> Option<i64> {
    match ask(t, window, act).await {
        BoardReply::Score(score) => score,
        other => panic!("{other:?}"),
    }
}

/// Ranks, members and scores.
async fn standings(t: &Fixture, window: Option<BoardWindow>, act: BoardAct) -> Vec<(u64, String, i64)> {
    match ask(t, window, act).await {
        BoardReply::Standings(all) => all.into_iter().map(|is| (is.rank, is.member, is.score)).collect(),
        other => panic!("{other:?}"),
    }
}

async fn top(t: &Fixture, window: Option<BoardWindow>) -> Vec<(u64, String, i64)> {
    let all = standings(t, window, BoardAct::Top { n: 1_000 }).await;
    assert_eq!(ask(t, window, BoardAct::Size).await, BoardReply::Size(all.len() as u64));
    all
}

fn ranked(members: &[(&str, i64)]) -> Vec<(u64, String, i64)> {
    (1..).zip(members).map(|(rank, (member, score))| (rank, (*member).to_owned(), *score)).collect()
}

/// S2: members stand by their scores, and those of equal scores by their bytes.
pub(crate) async fn members_stand_by_their_scores(t: Fixture) {
    assert_eq!((top(&t, None).await, score(&t, None, remove_of("a")).await), (vec![], None));
    for (member, by, is) in [("b", 5, 5), ("ä", 5, 5), ("c", -2, -2), ("a", 5, 5), ("b", 0, 5), ("z", 0, 0)]
    {
        assert_eq!(score(&t, None, add_of(member, by)).await, Some(is));
    }
    assert_eq!(top(&t, None).await, ranked(&[("a", 5), ("b", 5), ("ä", 5), ("z", 0), ("c", -2)]));
    assert_eq!(score(&t, None, add_of("c", 8)).await, Some(6));
    assert_eq!(score(&t, None, set_of("a", -7)).await, Some(-7));
    assert_eq!(score(&t, None, remove_of("b")).await, Some(5));
    assert_eq!(top(&t, None).await, ranked(&[("c", 6), ("ä", 5), ("z", 0), ("a", -7)]));
    assert_eq!(standings(&t, None, BoardAct::Top { n: 2 }).await, ranked(&[("c", 6), ("ä", 5)]));
}

/// S2: a member's rank is told, and who is right above and below it.
pub(crate) async fn a_member_is_told_with_its_neighbours(t: Fixture) {
    for i in 0..10 {
        score(&t, None, add_of(&format!("m{i}"), i / 2)).await;
    }
    let rank = async |member: &str| standings(&t, None, BoardAct::Rank { member: member.to_owned() }).await;
    assert_eq!(rank("m8").await, [(1, "m8".to_owned(), 4)]);
    assert_eq!(rank("m1").await, [(10, "m1".to_owned(), 0)]);
    assert_eq!(rank("nobody").await, []);
    let near =
        async |member: &str, n| standings(&t, None, BoardAct::Around { member: member.to_owned(), n }).await;
    let all = ranked(&[
        ("m8", 4),
        ("m9", 4),
        ("m6", 3),
        ("m7", 3),
        ("m4", 2),
        ("m5", 2),
        ("m2", 1),
        ("m3", 1),
        ("m0", 0),
        ("m1", 0),
    ]);
    assert_eq!(near("m7", 2).await, all[1..6]);
    assert_eq!([near("m8", 1).await, near("m1", 3).await], [all[..2].to_vec(), all[6..].to_vec()]);
    assert_eq!([near("m4", 100).await, near("nobody", 1).await], [all, vec![]]);
}

/// S14: a window merges its hours, and drops what is older.
pub(crate) async fn a_window_merges_its_buckets_and_drops_cold_ones(t: Fixture) {
    let window = LAST_3_HOURS;
    for (member, by) in [("a", 3), ("b", 1), ("c", 7)] {
        assert_eq!(score(&t, window, add_of(member, by)).await, Some(by));
        assert!(score(&t, window, add_of("a", 1)).await.is_some());
        t.pass(HOUR).await;
    }
    // The clock began at a whole hour, which is over.
    assert_eq!(top(&t, window).await, ranked(&[("c", 7), ("a", 2), ("b", 1)]));
    assert_eq!(score(&t, window, add_of("a", 9)).await, Some(11));
    t.clock.set(at((5 * HOUR - 1) * 1_000));
    assert_eq!(top(&t, window).await, ranked(&[("a", 10), ("c", 7)]));
    t.pass(1).await;
    assert_eq!(top(&t, window).await, ranked(&[("a", 9)]));
    t.pass(HOUR).await;
    assert_eq!(top(&t, window).await, []);
    // Boards of one name with another window are others.
    let days = Some(BoardWindow { bucket: Bucket::Day, buckets: 3 });
    assert_eq!((top(&t, None).await, top(&t, days).await), (vec![], vec![]));
}

/// S14: of a window who has nothing in sum is not on it, until a bucket that takes away is dropped.
pub(crate) async fn a_sum_of_nothing_is_not_on_a_window(t: Fixture) {
    let window = LAST_3_HOURS;
    assert_eq!(score(&t, window, add_of("a", -5)).await, Some(-5));
    t.pass(HOUR).await;
    assert_eq!(
        [score(&t, window, add_of("a", 5)).await, score(&t, window, add_of("b", 0)).await],
        [None, None]
    );
    assert_eq!(top(&t, window).await, []);
    t.pass(2 * HOUR).await;
    assert_eq!(top(&t, window).await, ranked(&[("a", 5)]));
    assert_eq!(score(&t, window, set_of("a", 2)).await, Some(2));
    t.pass(HOUR).await;
    assert_eq!(top(&t, window).await, ranked(&[("a", 2)]));
    assert_eq!(score(&t, window, remove_of("a")).await, Some(2));
    assert_eq!(score(&t, window, add_of("a", 1)).await, Some(1));
}

/// S13: a bucket of more than a thousand is dropped in slices, and nobody is told of half of it.
pub(crate) async fn a_large_bucket_is_dropped_in_slices(t: Fixture) {
    let window = Some(BoardWindow { bucket: Bucket::Hour, buckets: 1 });
    for hundred in 0..12 {
        let members = (0..100).map(|i| (format!("m{}", hundred * 100 + i), 1)).collect();
        ask(&t, window, BoardAct::AddAll { members, members_max: 1_000_000 }).await;
    }
    assert_eq!(ask(&t, window, BoardAct::Size).await, BoardReply::Size(1_200));
    t.pass(HOUR).await;
    assert_eq!(score(&t, window, add_of("m0", 2)).await, Some(2));
    assert_eq!(top(&t, window).await, ranked(&[("m0", 2)]));
}

/// S13: of more members than a board may have the lowest leave, with all that they had.
pub(crate) async fn the_lowest_leave_a_full_board(t: Fixture) {
    let add = |member: &str, by, members_max| BoardAct::Add { member: member.to_owned(), by, members_max };
    for window in [None, LAST_3_HOURS] {
        for (member, by) in [("a", 3), ("b", 2), ("c", 2), ("d", 9)] {
            score(&t, window, add(member, by, 1_000)).await;
        }
        assert_eq!(score(&t, window, add("e", 1, 4)).await, None);
        assert_eq!(score(&t, window, add("e", 2, 4)).await, None);
        assert_eq!(score(&t, window, add("e", 3, 4)).await, Some(3));
        assert_eq!(top(&t, window).await, ranked(&[("d", 9), ("a", 3), ("e", 3), ("b", 2)]));
        // First the change, then who has no room leaves.
        let set = BoardAct::Set { member: "b".to_owned(), score: 5, members_max: 2 };
        assert_eq!(score(&t, window, set).await, Some(5));
        assert_eq!(top(&t, window).await, ranked(&[("d", 9), ("b", 5)]));
        t.pass(HOUR).await;
        assert_eq!(score(&t, window, add("a", 10, 2)).await, Some(10));
        assert_eq!(top(&t, window).await, ranked(&[("a", 10), ("d", 9)]));
    }
}

fn add_all_of(members: &[(&str, i64)], members_max: u32) -> BoardAct {
    let members = members.iter().map(|(member, by)| ((*member).to_owned(), *by)).collect();
    BoardAct::AddAll { members, members_max }
}

/// S13: where a board has far more members than it may, each change lets a bounded number of them leave.
pub(crate) async fn a_board_far_over_its_size_shrinks_step_by_step(t: Fixture) {
    const WEEK: Option<BoardWindow> = Some(BoardWindow { bucket: Bucket::Hour, buckets: 168 });
    let members: Vec<(String, i64)> = (1..=60).map(|n| (format!("m{n:02}"), n)).collect();
    for window in [WEEK, None] {
        let all = BoardAct::AddAll { members: members.clone(), members_max: 1_000 };
        assert_eq!(ask(&t, window, all).await, BoardReply::Size(60));
    }
    // A member has up to 168 entries: 5 members leave besides as many as come.
    let add = |member: &str| BoardAct::Add { member: member.to_owned(), by: 100, members_max: 10 };
    assert_eq!(score(&t, WEEK, add("new")).await, Some(100));
    assert_eq!(ask(&t, WEEK, BoardAct::Size).await, BoardReply::Size(60 + 1 - 6));
    let two = vec![("m60".to_owned(), 1), ("low".to_owned(), -1)];
    let all = BoardAct::AddAll { members: two, members_max: 10 };
    assert_eq!(ask(&t, WEEK, all).await, BoardReply::Size(55 + 1 - 7));
    let lowest = standings(&t, WEEK, BoardAct::Top { n: 100 }).await.pop();
    assert_eq!(lowest, Some((49, "m13".to_owned(), 13)));
    let set = BoardAct::Set { member: "m60".to_owned(), score: 7, members_max: 10 };
    assert_eq!(score(&t, WEEK, set).await, None);
    assert_eq!(ask(&t, WEEK, BoardAct::Size).await, BoardReply::Size(49 - 6));
    for _ in 0..6 {
        score(&t, WEEK, add("new")).await;
    }
    assert_eq!(ask(&t, WEEK, BoardAct::Size).await, BoardReply::Size(10));
    assert_eq!(score(&t, None, add("new")).await, Some(100));
    assert_eq!(ask(&t, None, BoardAct::Size).await, BoardReply::Size(10));
}

/// S2: an add of several is as many adds; it answers how many members there are.
pub(crate) async fn several_are_added_to_in_one_step(t: Fixture) {
    for window in [None, LAST_3_HOURS] {
        let size = ask(&t, window, add_all_of(&[("a", 3), ("b", 1), ("c", -4)], 1_000)).await;
        assert_eq!(size, BoardReply::Size(3));
        t.pass(HOUR).await;
        let size = ask(&t, window, add_all_of(&[("c", 1), ("d", 2), ("b", 1)], 1_000)).await;
        assert_eq!(size, BoardReply::Size(4));
        assert_eq!(top(&t, window).await, ranked(&[("a", 3), ("b", 2), ("d", 2), ("c", -3)]));
    }
    t.pass(2 * HOUR).await;
    assert_eq!(top(&t, LAST_3_HOURS).await, ranked(&[("d", 2), ("b", 1), ("c", 1)]));
    // Of a window who comes to nothing is not on it.
    assert_eq!(ask(&t, LAST_3_HOURS, add_all_of(&[("d", -2), ("e", 0)], 1_000)).await, BoardReply::Size(2));
}

/// S13: who leaves a full board is decided when all were added, and has nothing left in any bucket.
pub(crate) async fn the_lowest_leave_behind_an_add_of_several(t: Fixture) {
    for window in [None, LAST_3_HOURS] {
        ask(&t, window, add_all_of(&[("a", 3), ("b", 2), ("c", 1)], 3)).await;
        t.pass(HOUR).await;
        assert_eq!(
            ask(&t, window, add_all_of(&[("d", 2), ("e", 9), ("c", 5)], 3)).await,
            BoardReply::Size(3)
        );
        assert_eq!(top(&t, window).await, ranked(&[("e", 9), ("c", 6), ("a", 3)]));
        assert_eq!(score(&t, window, add_of("b", 1)).await, Some(1));
        // First the change, then who has no room leaves.
        assert_eq!(ask(&t, window, add_all_of(&[("b", 7), ("f", 1)], 2)).await, BoardReply::Size(2));
        assert_eq!(top(&t, window).await, ranked(&[("e", 9), ("b", 8)]));
    }
}

/// S2: an add of several of which one breaks a limit changes nothing.
pub(crate) async fn an_add_of_several_is_refused_as_a_whole(t: Fixture) {
    const MAX: i64 = 9_007_199_254_740_991;
    let many: Vec<String> = (0..101).map(|i| format!("m{i}")).collect();
    let many: Vec<(&str, i64)> = many.iter().map(|member| (&**member, 1)).collect();
    for window in [None, LAST_3_HOURS] {
        let max = if window.is_some() { MAX / 3 } else { MAX };
        assert_eq!(score(&t, window, set_of("a", max)).await, Some(max));
        for act in [
            add_all_of(&[("b", 1), ("a", 1)], 10),
            add_all_of(&[("b", 1), ("c", max + 1)], 10),
            add_all_of(&[("b", 1), ("b", 1)], 10),
            add_all_of(&[("b", 1), ("", 1)], 10),
            add_all_of(&[("b", 1)], 0),
            add_all_of(&[], 10),
            add_all_of(&many, 1_000),
        ] {
            let op = BoardOp { name: "posts".to_owned(), window, act };
            let refused = t.store.tool(&ToolOp::Board(op.clone())).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{op:?}");
        }
        assert_eq!(top(&t, window).await, ranked(&[("a", max)]));
        assert_eq!(ask(&t, window, add_all_of(&many[..100], 1_000)).await, BoardReply::Size(101));
    }
}

/// S14: sixty buckets of a minute are the last hour, to the minute.
pub(crate) async fn sixty_minutes_are_the_last_hour(t: Fixture) {
    let window = Some(BoardWindow { bucket: Bucket::Minute, buckets: 60 });
    assert_eq!(score(&t, window, add_of("a", 1)).await, Some(1));
    t.pass(59).await;
    assert_eq!(score(&t, window, add_of("a", 1)).await, Some(2));
    t.pass(1).await;
    assert_eq!(ask(&t, window, add_all_of(&[("a", 5), ("b", 1)], 10)).await, BoardReply::Size(2));
    t.pass(58 * 60 + 59).await;
    assert_eq!(top(&t, window).await, ranked(&[("a", 7), ("b", 1)]));
    t.pass(1).await;
    assert_eq!(top(&t, window).await, ranked(&[("a", 5), ("b", 1)]));
    t.pass(60).await;
    assert_eq!(top(&t, window).await, []);
    // Hours of the same number are another board.
    assert_eq!(top(&t, Some(BoardWindow { bucket: Bucket::Hour, buckets: 60 })).await, []);
}

/// S14: a clock that goes back by less than the window adds to the bucket that it was in; what lies further ahead is dropped.
pub(crate) async fn a_board_follows_a_clock_that_goes_back(t: Fixture) {
    let window = LAST_3_HOURS;
    t.pass(2 * HOUR).await;
    assert_eq!(score(&t, window, add_of("a", 1)).await, Some(1));
    t.clock.set(at(0));
    assert_eq!(score(&t, window, add_of("a", 1)).await, Some(2));
    t.pass(4 * HOUR).await;
    assert_eq!(top(&t, window).await, ranked(&[("a", 2)]));
    assert_eq!(score(&t, window, add_of("b", 1)).await, Some(1));
    t.pass(HOUR).await;
    assert_eq!(top(&t, window).await, ranked(&[("b", 1)]));
    t.clock.set(at(HOUR * 1_000));
    assert_eq!(top(&t, window).await, []);
    assert_eq!(score(&t, window, add_of("a", 1)).await, Some(1));
}

/// S14: who reads while the clock is ahead drops buckets, also the newest. When it is back, they begin anew, and end as others do.
pub(crate) async fn a_bucket_that_was_dropped_begins_anew(t: Fixture) {
    let minute = Some(BoardWindow { bucket: Bucket::Minute, buckets: 1 });
    for (window, length) in [(LAST_3_HOURS, HOUR), (minute, 60)] {
        t.clock.set(at(30 * HOUR * 1_000));
        assert_eq!(score(&t, window, add_of("a", 1)).await, Some(1));
        t.pass(8 * length).await;
        assert_eq!(top(&t, window).await, []);
        t.clock.set(at(30 * HOUR * 1_000));
        assert_eq!(score(&t, window, add_of("a", 5)).await, Some(5));
        assert_eq!(score(&t, window, remove_of("a")).await, Some(5));
        assert_eq!(score(&t, window, add_of("a", 2)).await, Some(2));
        t.pass(2 * length).await;
        assert_eq!(score(&t, window, add_of("b", 1)).await, Some(1));
        t.pass(length).await;
        let left = if window == minute { vec![] } else { ranked(&[("b", 1)]) };
        assert_eq!(top(&t, window).await, left);
    }
}

/// S13: scores have bounds, below which all of them are exact.
pub(crate) async fn scores_have_bounds(t: Fixture) {
    const MAX: i64 = 9_007_199_254_740_991;
    for (window, max) in [(None, MAX), (LAST_3_HOURS, MAX / 3)] {
        assert_eq!(score(&t, window, set_of("a", max)).await, Some(max));
        assert_eq!(score(&t, window, add_of("b", 1 - max)).await, Some(1 - max));
        assert_eq!(score(&t, window, add_of("b", -1)).await, Some(-max));
        for act in [add_of("a", 1), add_of("b", -1), set_of("a", max + 1), add_of("c", i64::MIN)] {
            let op = BoardOp { name: "posts".to_owned(), window, act };
            let refused = t.store.tool(&ToolOp::Board(op)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
        }
        // What was refused left nothing.
        for (by, is) in [(-1, max - 1), (1, max), (-1, max - 1)] {
            assert_eq!(score(&t, window, add_of("a", by)).await, Some(is));
        }
        t.pass(HOUR).await;
        let more = if window.is_some() { Some(max + max - 1) } else { Some(max) };
        assert_eq!(score(&t, window, add_of("a", if window.is_some() { max } else { 1 })).await, more);
        assert_eq!(top(&t, window).await, ranked(&[("a", more.unwrap()), ("b", -max)]));
    }
}

/// S13: what is asked of a board has limits.
pub(crate) async fn boards_have_limits(t: Fixture) {
    let long = "m".repeat(256);
    let op = |act| BoardOp { name: "posts".to_owned(), window: None, act };
    let window = |buckets| Some(BoardWindow { bucket: Bucket::Day, buckets });
    for op in [
        BoardOp { name: String::new(), ..op(BoardAct::Size) },
        BoardOp { name: long.clone(), ..op(BoardAct::Size) },
        BoardOp { window: window(0), ..op(BoardAct::Size) },
        BoardOp { window: window(169), ..op(BoardAct::Size) },
        op(add_of(&long, 1)),
        op(remove_of("a\0b")),
        op(BoardAct::Add { member: "a".to_owned(), by: 1, members_max: 0 }),
        op(BoardAct::Add { member: "a".to_owned(), by: 1, members_max: 1_000_001 }),
        op(BoardAct::Top { n: 0 }),
        op(BoardAct::Top { n: 1_001 }),
        op(BoardAct::Around { member: "a".to_owned(), n: 0 }),
        op(BoardAct::Around { member: "a".to_owned(), n: 101 }),
    ] {
        let refused = t.store.tool(&ToolOp::Board(op.clone())).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{op:?}");
    }
    let most = window(168);
    assert_eq!(score(&t, most, add_of(&long[1..], 1)).await, Some(1));
    t.clock.advance(secs(167 * 86_400));
    assert_eq!(score(&t, most, add_of(&long[1..], 1)).await, Some(2));
    t.clock.advance(secs(86_400));
    assert_eq!(score(&t, most, add_of(&long[1..], 1)).await, Some(2));
}

/// S17: a board that is long past is forgotten by the way of others, piece by piece; who comes back to it finds nothing of it.
pub(crate) async fn a_board_that_is_past_leaves_nothing_behind(t: Fixture) {
    let other = BoardAct::Add { member: "x".to_owned(), by: 1, members_max: 9 };
    let of_few = |member: &str| BoardAct::Add { member: member.to_owned(), by: 5, members_max: 2 };
    for steps in 0..4 {
        score(&t, LAST_3_HOURS, of_few("old")).await;
        score(&t, LAST_3_HOURS, of_few("older")).await;
        t.pass(40 * HOUR).await;
        for _ in 0..steps {
            let op = BoardOp { name: "others".to_owned(), window: None, act: other.clone() };
            t.store.tool(&ToolOp::Board(op)).await.unwrap();
        }
        assert_eq!(top(&t, LAST_3_HOURS).await, ranked(&[]), "{steps}");
        assert_eq!(score(&t, LAST_3_HOURS, of_few("new")).await, Some(5), "{steps}");
        assert_eq!(top(&t, LAST_3_HOURS).await, ranked(&[("new", 5)]), "{steps}");
        t.pass(40 * HOUR).await;
    }
}
