//! Documents: values with versions.

use futures_util::future::join_all;
use punctual::{
    ErrorKind,
    store::{Doc, DocOp, DocReply, Precondition},
};

use crate::fixture::Fixture;

/// 64 KiB.
const VALUE_MAX: usize = 65_536;

fn get_of(key: &str) -> DocOp {
    DocOp::Get { key: key.to_owned() }
}

fn put_of(key: &str, precondition: Precondition, value: &[u8]) -> DocOp {
    DocOp::Put { key: key.to_owned(), precondition, value: value.to_vec() }
}

fn remove_of(key: &str, precondition: Precondition) -> DocOp {
    DocOp::Remove { key: key.to_owned(), precondition }
}

fn list_of(prefix: &str, after: Option<&str>, limit: usize) -> DocOp {
    DocOp::List { prefix: prefix.to_owned(), after: after.map(str::to_owned), limit }
}

async fn ask(t: &Fixture, op: DocOp) -> DocReply {
    t.store.doc(&op).await.expect("a step within the limits")
}

async fn get(t: &Fixture, key: &str) -> Option<Doc> {
    match ask(t, get_of(key)).await {
        DocReply::Is(doc) => doc,
        other => panic!("{other:?}"),
    }
}

/// Puts a document, whatever there is.
async fn put(t: &Fixture, key: &str, value: &[u8]) -> Doc {
    match ask(t, put_of(key, Precondition::Always, value)).await {
        DocReply::Is(Some(doc)) => doc,
        other => panic!("{other:?}"),
    }
}

/// The keys of a page, and whether there are more.
async fn page(t: &Fixture, prefix: &str, after: Option<&str>, limit: usize) -> (Vec<String>, bool) {
    match ask(t, list_of(prefix, after, limit)).await {
        DocReply::Page { docs, more } => (docs.into_iter().map(|doc| doc.key).collect(), more),
        other => panic!("{other:?}"),
    }
}

/// S2: a document is as it was put, byte for byte, until it is put again or removed.
pub(crate) async fn a_document_is_as_it_was_put(t: Fixture) {
    assert_eq!(get(&t, "schedule/nightly").await, None);
    let longest = "k".repeat(255);
    for (key, value) in [
        ("schedule/nightly", &b"{}"[..]),
        (&longest, b"\0\xff\r\n"),
        ("Größe {a}:\n✓", b""),
        ("schedule/nightly", b"other"),
    ] {
        let doc = put(&t, key, value).await;
        assert_eq!((doc.key.as_str(), doc.value.as_slice()), (key, value));
        assert_eq!(get(&t, key).await, Some(doc));
    }
    assert_eq!(ask(&t, remove_of("schedule/nightly", Precondition::Always)).await, DocReply::Is(None));
    assert_eq!(get(&t, "schedule/nightly").await, None);
}

/// S2: of two who read the same version one changes the document, and the other is told how it stands.
pub(crate) async fn a_document_is_changed_by_who_knows_its_version(t: Fixture) {
    let first = put(&t, "k", b"1").await;
    let second = put(&t, "k", b"2").await;
    let conflict = DocReply::Conflict(Some(second.clone()));
    for precondition in [
        Precondition::IfVersion(first.version),
        Precondition::IfVersion(second.version + 1),
        Precondition::IfVersion(0),
        Precondition::IfAbsent,
    ] {
        assert_eq!(ask(&t, put_of("k", precondition, b"3")).await, conflict, "{precondition:?}");
        assert_eq!(ask(&t, remove_of("k", precondition)).await, conflict, "{precondition:?}");
    }
    let changed = ask(&t, put_of("k", Precondition::IfVersion(second.version), b"3")).await;
    let third = get(&t, "k").await.unwrap();
    assert_eq!((changed, third.value.as_slice()), (DocReply::Is(Some(third.clone())), &b"3"[..]));
    assert_eq!(ask(&t, remove_of("k", Precondition::IfVersion(third.version))).await, DocReply::Is(None));
    assert_eq!(
        ask(&t, put_of("k", Precondition::IfVersion(third.version), b"4")).await,
        DocReply::Conflict(None)
    );
    assert!(matches!(ask(&t, put_of("k", Precondition::IfAbsent, b"4")).await, DocReply::Is(Some(_))));
}

/// S2: the versions of documents rise, and none is used again, not even where a document was removed or the clock went back.
pub(crate) async fn versions_of_documents_rise(t: Fixture) {
    let mut last = 0;
    for (key, value) in [("a", "1"), ("b", "1"), ("a", "2"), ("a", "1")] {
        let version = put(&t, key, value.as_bytes()).await.version;
        assert!(last < version, "{last} {version}");
        last = version;
    }
    ask(&t, remove_of("a", Precondition::Always)).await;
    ask(&t, remove_of("b", Precondition::Always)).await;
    t.clock.set(crate::fixture::at(0));
    assert!(last < put(&t, "a", b"1").await.version);
}

/// S3: a change that was made already is not made again, whatever it requires.
pub(crate) async fn a_change_of_a_document_may_be_repeated(t: Fixture) {
    let new = put_of("k", Precondition::IfAbsent, b"1");
    let made = ask(&t, new.clone()).await;
    assert_eq!(ask(&t, new).await, made);
    let DocReply::Is(Some(doc)) = made else { panic!("it was made") };
    let change = put_of("k", Precondition::IfVersion(doc.version), b"2");
    let changed = ask(&t, change.clone()).await;
    assert_eq!(ask(&t, change).await, changed);
    assert_eq!(put(&t, "k", b"2").await, get(&t, "k").await.unwrap());
    let DocReply::Is(Some(doc)) = changed else { panic!("it was changed") };
    for _ in 0..2 {
        assert_eq!(ask(&t, remove_of("k", Precondition::IfVersion(doc.version))).await, DocReply::Is(None));
    }
}

/// S13: documents are listed by the bytes of their keys, page by page.
pub(crate) async fn documents_are_listed_by_their_keys(t: Fixture) {
    assert_eq!(page(&t, "", None, 1).await, (vec![], false));
    for key in ["b", "a/2", "é", "a/1", "a", "B", "a/", "b/1"] {
        put(&t, key, key.as_bytes()).await;
    }
    let names = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        page(&t, "", None, 1_000).await,
        (names(&["B", "a", "a/", "a/1", "a/2", "b", "b/1", "é"]), false)
    );
    assert_eq!(page(&t, "a/", None, 2).await, (names(&["a/", "a/1"]), true));
    assert_eq!(page(&t, "a/", Some("a/1"), 1).await, (names(&["a/2"]), false));
    assert_eq!(page(&t, "a/", Some("a/2"), 1).await, (vec![], false));
    assert_eq!(page(&t, "a/", Some("B"), 9).await, (names(&["a/", "a/1", "a/2"]), false));
    assert_eq!(page(&t, "a/", Some("c"), 9).await, (vec![], false));
    assert_eq!(page(&t, "c", None, 9).await, (vec![], false));
    ask(&t, remove_of("a/1", Precondition::Always)).await;
    assert_eq!(page(&t, "a/", None, 9).await, (names(&["a/", "a/2"]), false));
    let DocReply::Page { docs, .. } = ask(&t, list_of("b", None, 1)).await else { panic!("a page") };
    assert_eq!(Some(&docs[0]), get(&t, "b").await.as_ref());
}

/// S13: a page has up to a mebibyte of values, and one document at least.
pub(crate) async fn a_page_of_documents_has_up_to_a_mebibyte(t: Fixture) {
    for i in 10..27 {
        put(&t, &i.to_string(), &vec![b'x'; VALUE_MAX]).await;
    }
    let (keys, more) = page(&t, "", None, 1_000).await;
    assert_eq!((keys.len(), more), (16, true));
    put(&t, "09", b"1").await;
    let (keys, more) = page(&t, "", None, 1_000).await;
    assert_eq!((keys.len(), keys.last().unwrap().as_str(), more), (16, "24", true));
    assert_eq!(page(&t, "", Some("24"), 1_000).await, (vec!["25".to_owned(), "26".to_owned()], false));
}

/// S13: keys, values and pages have their limits.
pub(crate) async fn documents_have_limits(t: Fixture) {
    let long = "k".repeat(256);
    let too_large = vec![0; VALUE_MAX + 1];
    for op in [
        get_of(""),
        get_of("a\0b"),
        get_of(&long),
        put_of("", Precondition::Always, b""),
        put_of(&long, Precondition::Always, b""),
        remove_of("", Precondition::Always),
        list_of(&long, None, 1),
        list_of("", Some(&long), 1),
        list_of("", None, 0),
        list_of("", None, 1_001),
    ] {
        assert_eq!(t.store.doc(&op).await.unwrap_err().kind(), ErrorKind::Invalid, "{op:?}");
    }
    let refused = t.store.doc(&put_of("k", Precondition::Always, &too_large)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooLarge);
    assert_eq!(page(&t, "", None, 1).await, (vec![], false));
    put(&t, "k", &too_large[1..]).await;
}

/// S13: a store has up to 100,000 documents.
pub(crate) async fn a_store_has_up_to_a_hundred_thousand_documents(t: Fixture) {
    let filled = t.behind.as_ref().unwrap_or(&t.store);
    for thousand in 0..100 {
        let puts = (0..1_000).map(|i| put_of(&format!("{thousand:02}{i:03}"), Precondition::Always, b"1"));
        join_all(puts.map(async |op| filled.doc(&op).await.unwrap())).await;
    }
    let refused = t.store.doc(&put_of("one more", Precondition::Always, b"1")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StoreFull);
    assert_eq!(put(&t, "00000", b"2").await.value, b"2");
    ask(&t, remove_of("99999", Precondition::Always)).await;
    put(&t, "one more", b"1").await;
    assert!(t.store.doc(&put_of("99999", Precondition::Always, b"1")).await.is_err());
}
