//! The style sheet and the script. Their addresses have a digest of their content, so that a browser can keep them for ever.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock},
};

use axum::{
    extract::State,
    http::{Uri, header},
    response::IntoResponse,
};

use super::{Board, fields::Fields, links::Links};

static STYLE: Asset = Asset {
    name: "style.css",
    media_type: "text/css; charset=utf-8",
    text: LazyLock::new(|| include_str!("../../assets/style.css").to_owned()),
};
static SCRIPT: Asset = Asset {
    name: "live.js",
    media_type: "text/javascript; charset=utf-8",
    text: LazyLock::new(|| bare(include_str!("../../assets/live.js"))),
};
/// For a file whose digest is in its address.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// A file that is a part of the program.
struct Asset {
    name: &'static str,
    media_type: &'static str,
    text: LazyLock<String>,
}

/// The versions of the files.
#[derive(Debug)]
pub(super) struct Assets {
    style: String,
    script: String,
}

/// Returns a script without its comments and indents. Each comment of it is a line of its own.
fn bare(script: &str) -> String {
    let lines =
        script.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

impl Asset {
    fn digest(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Answers a request for it. Another version than this one is asked for while programs are replaced. It is not kept.
    fn answer(&'static self, digest: &str, uri: &Uri) -> impl IntoResponse + use<> {
        let keep = if Fields::of_query(uri).get("v") == digest { FOR_EVER } else { "no-store" };
        ([(header::CONTENT_TYPE, self.media_type), (header::CACHE_CONTROL, keep)], self.text.as_str())
    }
}

impl Assets {
    pub(super) fn new() -> Self {
        Self { style: STYLE.digest(), script: SCRIPT.digest() }
    }

    /// The address of the style sheet.
    pub(super) fn style(&self, links: &Links) -> String {
        links.query(STYLE.name, &[("v", &self.style)])
    }

    /// The address of the script.
    pub(super) fn script(&self, links: &Links) -> String {
        links.query(SCRIPT.name, &[("v", &self.script)])
    }
}

/// Returns the style sheet. It reads nothing from the store.
pub(super) async fn style(State(board): State<Arc<Board>>, uri: Uri) -> impl IntoResponse {
    STYLE.answer(&board.assets.style, &uri)
}

/// Returns the script. It reads nothing from the store.
pub(super) async fn script(State(board): State<Arc<Board>>, uri: Uri) -> impl IntoResponse {
    SCRIPT.answer(&board.assets.script, &uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is a part of the first load of each browser.
    const SCRIPT_BYTES_MAX: usize = 8 * 1024;

    #[test]
    fn the_script_stays_small_and_evaluates_no_text() {
        assert!(SCRIPT.text.len() <= SCRIPT_BYTES_MAX, "{} bytes", SCRIPT.text.len());
        for word in ["eval(", "Function(", "innerHTML", "document.write", "setAttribute('on"] {
            assert!(!SCRIPT.text.contains(word), "{word}");
        }
    }
}
