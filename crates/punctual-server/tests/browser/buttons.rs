//! Each button of each page does something, for each role.

use std::collections::{BTreeMap, BTreeSet};

use punctual::{
    Client,
    store::{DocOp, Precondition},
};
use punctual_server::token::Role;
use serde_json::{Value, json};

use crate::{chromium::Chromium, served::Served};

/// Each has jobs in every state. The first one is not paused.
const QUEUES: [&str; 4] = ["mail", "webhooks", "reports", "media"];
/// Most pages that are looked at for buttons.
const PAGES_MAX: usize = 80;

/// Defines the functions that find buttons. A button is known by its text, and by the form around it.
const BUTTONS: &str = r"
window.open_all = () => document.querySelectorAll('details').forEach(one => one.open = true);
window.buttons = () => [...document.querySelectorAll('button, summary, input[type=submit]')]
    .filter(one => !one.disabled && (one.closest('dialog')?.open ?? true));
window.label = one => [
    // Some say behind a colon what is chosen.
    ((one.textContent || one.value).trim() || one.title || one.ariaLabel).split(':')[0],
    one.form?.getAttribute('method') === 'post' ? one.form.getAttribute('action') : '',
].join(' | ');
";

/// Presses a button, and notes what changes.
const PRESS: &str = r"
(() => {
    const button = buttons().find(one => shape(label(one)) === LABEL);
    if (!button) return false;
    button.closest('details') && button.tagName !== 'SUMMARY' && (button.closest('details').open = true);
    fill_in();
    window.seen = { active: document.activeElement, changes: 0 };
    new MutationObserver(all => seen.changes += all.length)
        .observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    button.click();
    return true;
})()
";

/// Whether something happened: another page, a change on this one, or a field that has to be filled in.
const HAPPENED: &str = "typeof seen === 'undefined' ? document.readyState === 'complete' && document.body !== null \
     : 0 < seen.changes || document.activeElement !== seen.active";

/// Fills in what forms ask for: what their examples say, and the name of what is to go.
const FILL_IN: &str = r"
window.fill_in = () => document.querySelectorAll('main form:not([role=search]) input').forEach(one => {
    if (one.type !== 'text') return;
    one.value ||= one.name === 'name' ? decodeURIComponent(location.pathname.split('/').pop()) : one.placeholder || 'because';
});
";

/// Names and ids in addresses vary.
const SHAPE: &str = r"
window.shape = text => text.replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, 'ID').replace(/\/(queues|schedules|topics|workers|operations)\/[^/ ?]+/g, '/$1/NAME');
";

struct Person<'a> {
    browser: &'a mut Chromium,
    served: &'a Served,
}

impl Person<'_> {
    fn open(&mut self, url: &str) {
        self.browser.open(url);
        self.browser.until("document.querySelector('.tools') !== null || !document.querySelector('script')");
        self.browser.eval(&format!("{BUTTONS}{SHAPE}{FILL_IN}open_all()"));
    }

    /// Presses a button of the page that is open. Returns whether the page still has it.
    fn press(&mut self, label: &str) -> bool {
        self.browser.eval(PRESS.replace("LABEL", &json!(label).to_string()).as_str()) != false
    }

    fn status(&mut self) -> u64 {
        let status = self.browser.eval("performance.getEntriesByType('navigation')[0].responseStatus");
        status.as_u64().unwrap()
    }

    /// The status of the page that is open, which must be no refusal.
    fn check(&mut self, what: &str) -> u64 {
        self.browser.until(HAPPENED);
        let status = self.status();
        let text =
            self.browser.eval("(document.querySelector('main') ?? document.body).innerText.slice(0, 300)");
        assert!(status < 400, "{what}: {status} {text}");
        status
    }

    /// All buttons of all pages, each with the pages that have it.
    fn find(&mut self) -> BTreeMap<String, Vec<String>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        self.served.crawl(self.browser, PAGES_MAX, |browser, url| {
            let labels = browser.eval(&format!(
                "{BUTTONS}{SHAPE}buttons().map(one => (one.closest('header') ? 'bar' : shape(location.pathname)) + ' | ' + shape(label(one)))"
            ));
            for label in labels.as_array().unwrap().iter().filter_map(Value::as_str) {
                found.entry(label.to_owned()).or_default().push(url.to_owned());
            }
        });
        found
    }

    /// Presses each button once, and on the page that follows the button of its form.
    fn press_all(&mut self) -> BTreeSet<String> {
        let mut pressed = BTreeSet::new();
        let mut found: Vec<_> = self.find().into_iter().collect();
        // Those that few pages have come first, and those that take jobs away from the pages of others last.
        found.sort_by_key(|(button, urls)| {
            let is_last = ["/matching", "/purge", "| Delete"].iter().any(|word| button.contains(word));
            (button.contains("| Log out"), is_last, urls.len())
        });
        for (button, urls) in found {
            let (page, label) = button.split_once(" | ").unwrap();
            let did = urls.iter().any(|url| {
                self.open(url);
                // What was deleted meanwhile has no page.
                self.status() < 400 && self.press(label)
            });
            assert!(did, "{button} is on none of {urls:?} any more");
            self.check(&button);
            pressed.insert(button.clone());
            // A confirmation, or what a form says that is not filled in.
            let is_other = self.browser.eval("typeof seen === 'undefined'") == true;
            let path = self.browser.eval("location.pathname");
            if is_other
                && path.as_str().is_some_and(|path| path.ends_with("/confirm") || path.ends_with("/matching"))
            {
                self.browser.eval(&format!("{BUTTONS}{SHAPE}{FILL_IN}"));
                let next = self
                    .browser
                    .eval("shape(label(document.querySelector('main form[method=post] button')))");
                let next = next.as_str().unwrap();
                assert!(self.press(next), "{button}, then {next}");
                self.check(&format!("{button}, then {next}"));
                pressed.insert(format!("{page} | {label} | {next}"));
            }
        }
        pressed
    }
}

fn filled() -> Served {
    let served = Served::new();
    for text in QUEUES {
        served.fill(text);
    }
    served.runtime.block_on(served.client.queue(QUEUES[0]).resume()).unwrap();
    // One works, and one was told to take no new jobs.
    for (id, state) in [("00000000000000a1", "working"), ("00000000000000b2", "quiet")] {
        served.runtime.block_on(register(&served.client, id, state));
    }
    served
}

/// Registers a worker as it registers itself.
async fn register(client: &Client, id: &str, state: &str) {
    let now = client.store().now().await.unwrap();
    let info = json!({
        "host": "web-1", "pid": 4711, "version": "1.2.3", "since_ms": now, "seen_ms": now, "slots": 50, "busy": 3,
        "queues": [{"name": "mail"}], "state": state,
    });
    let (key, value) = (format!("worker/{id}"), info.to_string().into_bytes());
    client.store().doc(&DocOp::Put { key, precondition: Precondition::Always, value }).await.unwrap();
}

fn pressed(browser: &mut Chromium, role: Role) -> BTreeSet<String> {
    let served = filled();
    served.log_in(browser, role);
    let before = everything(&served);
    let pressed = Person { browser, served: &served }.press_all();
    // The stream of the last page is not to break off.
    browser.open("about:blank");
    if role == Role::Read {
        assert_eq!(everything(&served), before, "somebody who may only look changed something");
    }
    pressed
}

/// All jobs and documents of a store.
fn everything(served: &Served) -> String {
    served.runtime.block_on(async {
        let jobs = served.client.list(&crate::site::Site::all()).await.unwrap().jobs;
        let mut all = vec![format!("{jobs:?}")];
        for queue in QUEUES {
            let info = served.client.queue(queue).show().await.unwrap();
            all.push(format!("{info:?}"));
        }
        all.join("\n")
    })
}

/// Complaint 14: each button does something.
#[test]
fn each_button_does_something() {
    let Some(mut browser) = Chromium::start() else { return };
    let [admin, operate, read] =
        [Role::Admin, Role::Operate, Role::Read].map(|role| pressed(&mut browser, role));
    for (role, pressed) in Role::ALL.into_iter().zip([&read, &operate, &admin]) {
        println!("{role}: {} buttons", pressed.len());
    }
    println!("  {}", Vec::from_iter(admin.clone()).join("\n  "));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    assert!(read.is_subset(&operate) && operate.is_subset(&admin), "{:?}", operate.difference(&admin));
    for order in ["Quiet", "Resume", "Stop"] {
        let is_pressed = |one: &String| one.contains(&format!("/workers | {order} |"));
        assert!(operate.iter().any(is_pressed), "{order}: {operate:?}");
    }
    assert!(!read.iter().any(|one| one.contains("| Delete")), "{read:?}");
}
