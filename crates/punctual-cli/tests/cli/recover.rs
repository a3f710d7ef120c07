//! `recover`: what can be read of a damaged file, in a new one.

use crate::fixture::{A, Cli};

const JOBS: usize = 300;

#[test]
fn a_damaged_file_is_recovered_and_what_remains_of_it_runs() {
    let t = Cli::new();
    t.feed(
        "push --batch -",
        "{\"kind\":\"k\",\"queue\":\"q\",\"payload\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}\n".repeat(JOBS),
    )
    .ok();
    t.ok(&format!("push k -q q --id {A}"));
    t.ok("compact");
    let mut bytes = std::fs::read(t.path("punctual.db")).unwrap();
    // A leaf of the records: a page without rows can still have their bytes.
    let is_leaf = |page: &[u8]| page[0] == 13 && page.windows(32).any(|text| text == [b'x'; 32]);
    let page = 4_096 * bytes.chunks(4_096).position(is_leaf).expect("the file has payloads");
    bytes[page..page + 4_096].fill(0xa5);
    std::fs::write(t.path("punctual.db"), &bytes).unwrap();
    let said = t.run("doctor");
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(format!("{said:?}").contains("punctual recover NEW"), "{said:#?}");

    let answer = t.json("recover new.db");
    let number = |name: &str| answer[name].as_u64().unwrap();
    assert_eq!(answer["ok"], true, "{answer}");
    assert!(number("jobs") < JOBS as u64 + 1 && JOBS as u64 - 100 < number("jobs"), "{answer}");
    assert!(0 < number("lost_pages"), "{answer}");
    assert_eq!(std::fs::read(t.path("punctual.db")).unwrap(), bytes);
    assert!(t.ok("audit --store sqlite:new.db").starts_with("ok"));
    let taken = t.run("take -q q -n 1000 --json --store sqlite:new.db");
    assert!(taken.code == Some(0), "{taken:#?}");
    t.run("recover new.db").fails(4, "conflict", "could not make new.db");
    let said = t.ok("recover other.db");
    assert!(said.contains(" jobs in other.db, repaired"), "{said}");
}

#[test]
fn only_a_file_that_is_there_is_recovered() {
    let t = Cli::new();
    let refused = t.run("recover new.db --store redis://localhost:1");
    refused.fails(2, "unsupported", "only a store in an SQLite file can be recovered");
    t.run("recover new.db").fails(5, "store_unavailable", "there is no store at punctual.db");
    assert!(!t.path("new.db").exists() && !t.path("punctual.db").exists());
}
