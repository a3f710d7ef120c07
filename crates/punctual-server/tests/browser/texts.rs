//! Texts of jobs that try to become a part of the page.

use crate::{chromium::Chromium, served::Served};

/// Most pages that are opened for a text: those of each kind, and some that search for it.
const PAGES_MAX: usize = 18;

/// Each would set `window.flag` where it is not escaped.
const ATTEMPTS: [&str; 40] = [
    "<script>flag=1</script>",
    "</script><script>flag=1</script>",
    "\"><script>flag=1</script>",
    "'><script>flag=1</script>",
    "</title><script>flag=1</script>",
    "</textarea><script>flag=1</script>",
    "</style><script>flag=1</script>",
    "--><script>flag=1</script>",
    "]]><script>flag=1</script>",
    "<ScRiPt>flag=1</ScRiPt>",
    "<script/x>flag=1</script>",
    "<script src=data:,flag=1></script>",
    "<script type=module>flag=1</script>",
    "<img src=x onerror=flag=1>",
    "\"><img src=x onerror=flag=1>",
    "' onfocus=flag=1 autofocus x='",
    "\" onfocus=flag=1 autofocus x=\"",
    "\" onmouseover=flag=1 style=\"position:fixed;inset:0",
    "<svg onload=flag=1>",
    "<svg><script>flag=1</script></svg>",
    "<svg><animate onbegin=flag=1 attributeName=x dur=1s>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=flag=1>",
    "<body onload=flag=1>",
    "<iframe srcdoc=\"<script>parent.flag=1</script>\"></iframe>",
    "<iframe src=javascript:parent.flag=1></iframe>",
    "<object data=javascript:flag=1></object>",
    "<embed src=javascript:flag=1>",
    "<a href=javascript:flag=1 id=x autofocus>x</a>",
    "javascript:flag=1",
    "javascript:/*--></title></style></textarea></script><svg/onload=flag=1>",
    "<details open ontoggle=flag=1>",
    "<video><source onerror=flag=1></video>",
    "<input onfocus=flag=1 autofocus>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content=0;url=javascript:flag=1>",
    "<link rel=stylesheet href=data:text/css,*{display:none}>",
    "<form action=javascript:flag=1><button autofocus>x</button></form>",
    "{{constructor.constructor('flag=1')()}}",
    "${flag=1}",
    "&lt;script&gt;flag=1&lt;/script&gt;&#60;script&#62;flag=1",
];

#[test]
fn no_text_of_a_job_runs_on_a_page() {
    let Some(mut browser) = Chromium::start() else { return };
    let mut pages = 0;
    for some in ATTEMPTS.chunks(3) {
        // A store of their own, so that no page leads to the pages of others.
        let served = Served::new();
        served.fill(&some.join(" "));
        pages += served.crawl(&mut browser, PAGES_MAX, |browser, url| {
            assert_eq!(browser.eval("typeof flag"), "undefined", "{url}");
            assert_eq!(
                browser.eval("document.querySelectorAll('main script, main iframe, main object').length"),
                0,
                "{url}"
            );
        });
        // The stream of the last page is not to break off.
        browser.open("about:blank");
        // The content security policy refuses what would have run, and complains.
        assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    }
    assert!(150 < pages, "{pages}");
    println!("{} texts on {pages} pages: nothing ran", ATTEMPTS.len());
}
