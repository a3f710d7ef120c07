//! Pages that everybody can use: at each width, in both themes, by the rules of axe-core.

use std::{env, fs, path::PathBuf};

use serde_json::{Value, json};

use crate::{chromium::Chromium, served::Served};

/// Widths of a small phone, a phone, a tablet and a desk, in CSS pixels.
const WIDTHS: [u32; 4] = [320, 375, 768, 1_440];
/// Most pages that are looked at.
const PAGES_MAX: usize = 60;

/// The text of axe-core. `scripts/test` fetches it and says where it is; without it, its rules are not checked, and in CI that is a failure.
fn axe() -> Option<String> {
    let Some(path) = env::var_os("PUNCTUAL_AXE").map(PathBuf::from) else {
        eprintln!(
            "MISSING: PUNCTUAL_AXE, the path of axe.min.js, so the rules of accessibility were not checked"
        );
        assert!(env::var_os("CI").is_none(), "CI needs axe-core");
        return None;
    };
    Some(fs::read_to_string(path).unwrap())
}

/// What breaks a rule on the page that is open.
fn broken(browser: &mut Chromium, axe: &str) -> Vec<Value> {
    browser.eval(axe);
    let run = "axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }) \
         .then(all => all.violations.map(one => [one.id, one.help, one.nodes.slice(0, 3).map(node => [node.html, node.failureSummary])]))";
    browser.settled(run).as_array().unwrap().clone()
}

#[test]
fn each_page_fits_each_width_and_keeps_the_rules() {
    let Some(mut browser) = Chromium::start() else { return };
    let axe = axe();
    let served = Served::new();
    let mut faults = Vec::new();
    for filled in [false, true] {
        if filled {
            for text in ["mail", "webhooks.with.a.rather.long.name.that.does.not.fit"] {
                served.fill(text);
            }
        }
        let mut shapes = std::collections::BTreeSet::new();
        let pages = served.crawl(&mut browser, PAGES_MAX, |browser, url| {
            // One page of each kind, and of each of its states.
            let shape = browser.eval("location.pathname.replace(/[0-9a-f]{8}-[0-9a-f-]{27}/, 'ID') + document.querySelector('h1')?.textContent + (document.querySelector('.head .badge')?.textContent ?? '')");
            if !shapes.insert(shape.to_string()) {
                return;
            }
            for width in WIDTHS {
                browser.width(width);
                let over = browser.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth");
                if over != 0 {
                    faults.push(format!("{url} is {over} px too wide at {width} px"));
                }
            }
            let Some(axe) = &axe else { return };
            for theme in ["light", "dark"] {
                browser.eval(&format!("document.documentElement.dataset.theme = {}", json!(theme)));
                for broken in broken(browser, axe) {
                    faults.push(format!("{url} in {theme}: {broken}"));
                }
            }
        });
        println!("{pages} pages, {} looked at", shapes.len());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
