//! `man`: a page for each command.

use std::fs;

use crate::fixture::Cli;

#[test]
fn each_command_has_a_page() {
    let t = Cli::new();
    assert_eq!(t.ok("man pages"), "");
    let page = |name: &str| fs::read_to_string(t.path("pages").join(name)).unwrap();
    assert!(page("punctual.1").contains(r"punctual\-push(1)"), "{}", page("punctual.1"));
    for name in ["push", "queue-set", "forward", "import-zset"] {
        let page = page(&format!("punctual-{name}.1"));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(r"\-\-store"), "{page}");
    }
}
