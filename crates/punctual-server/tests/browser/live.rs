//! Pages that are live: they follow the store, and keys work on them.

use punctual::store::Action;

use crate::{chromium::Chromium, served::Served};

#[test]
fn a_page_follows_the_store_and_keeps_what_a_person_does() {
    let Some(mut browser) = Chromium::start() else { return };
    let served = Served::new();
    let first = served.push("mail.first");
    browser.open(&format!("{}/jobs", served.url));
    browser.until("document.querySelector('.tools .state').dataset.state === 'live'");
    browser.eval("window.same = true; document.querySelector('#fields').open = true");
    browser
        .eval("document.querySelector('tbody input').click(); document.querySelector('tbody th a').focus()");
    browser.eval("document.querySelector('#filter').value = 'kind:ma'");

    served.push("mail.second");
    browser.until("document.querySelectorAll('tbody tr').length === 2");
    let row = format!("document.getElementById('job-{first}')");
    for kept in [
        "window.same",
        "document.querySelector('#fields').open",
        "document.querySelector('#filter').value === 'kind:ma'",
        &format!("{row}.querySelector('input').checked"),
        &format!("document.activeElement === {row}.querySelector('a')"),
        "document.querySelectorAll('tbody input:checked').length === 1",
    ] {
        assert_eq!(browser.eval(kept), true, "{kept}");
    }
    // A row that goes takes nothing else with it. The counters are read once a second: they show a number of jobs that they never showed
    // before.
    served.runtime.block_on(served.client.act(&[first.into()], &Action::Delete)).unwrap();
    served.push("mail.third");
    served.push("mail.fourth");
    browser.until(&format!("document.querySelectorAll('tbody tr').length === 3 && {row} === null"));
    assert_eq!(browser.eval("document.querySelector('tbody').textContent.includes('mail.second')"), true);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn updates_are_paused_and_a_lost_server_is_shown() {
    let Some(mut browser) = Chromium::start() else { return };
    let served = Served::new();
    let state = |state: &str| format!("document.querySelector('.tools .state').dataset.state === '{state}'");
    let waiting = |n: u32| format!("document.querySelector('.counters .value').textContent === '{n}'");
    served.push("a");
    browser.open(&served.url);
    browser.until(&state("live"));
    browser.until(&waiting(1));
    browser.press(" ");
    browser.until(&state("paused"));
    served.push("b");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(browser.eval(&waiting(1)), true);
    browser.eval("document.querySelector('.tools .state').click()");
    browser.until(&state("live"));
    browser.until(&waiting(2));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    served.stop.cancel();
    browser.until(&state("disconnected"));
}

#[test]
fn keys_go_to_pages_move_among_rows_and_help() {
    let Some(mut browser) = Chromium::start() else { return };
    let served = Served::new();
    served.push("a");
    served.push("b");
    browser.open(&served.url);
    for (key, path) in [
        ("t", "/upcoming"),
        ("q", "/queues"),
        ("f", "/failures"),
        ("s", "/schedules"),
        ("o", ""),
        ("j", "/jobs"),
    ] {
        browser.until("document.querySelector('.tools') !== null");
        browser.press("g");
        browser.press(key);
        browser.until(&format!(
            "location.href === '{}{path}' && document.readyState === 'complete'",
            served.url
        ));
    }
    let on = |n: u32| {
        format!("document.activeElement.closest('tr') === document.querySelectorAll('tbody tr')[{n}]")
    };
    for (key, n) in [("j", 0), ("j", 1), ("j", 1), ("k", 0)] {
        browser.press(key);
        assert_eq!(browser.eval(&on(n)), true, "{key} to {n}");
    }
    browser.press("x");
    assert_eq!(browser.eval("document.querySelectorAll('tbody input:checked').length"), 1);
    browser.press("?");
    assert_eq!(browser.eval("document.querySelector('dialog').open"), true);
    browser.eval("document.querySelector('dialog').close()");
    browser.press("t");
    browser.press("t");
    assert_eq!(browser.eval("document.documentElement.dataset.theme"), "dark");
    browser.press("/");
    assert_eq!(browser.eval("document.activeElement.id"), "filter");
    // Within a field, keys are text.
    browser.press("t");
    assert_eq!(browser.eval("document.querySelector('#filter').value"), "t");
    browser.open(&format!("{}/queues", served.url));
    assert_eq!(browser.eval("document.documentElement.dataset.theme"), "dark");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
