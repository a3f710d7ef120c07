//! The style sheet. Its address has a digest of its content, so that a browser can keep it for ever.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use axum::{
    extract::State,
    http::{Uri, header},
    response::IntoResponse,
};

use super::{Board, fields::Fields};

const CSS: &str = include_str!("../../assets/style.css");
/// For a style sheet whose digest is in its address.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// The version of the style sheet.
#[derive(Debug)]
pub(super) struct Style {
    pub(super) digest: String,
}

impl Style {
    pub(super) fn new() -> Self {
        let mut hasher = DefaultHasher::new();
        CSS.hash(&mut hasher);
        Self { digest: format!("{:016x}", hasher.finish()) }
    }
}

/// Returns the style sheet. It reads nothing from the store.
///
/// Another version than this one is asked for while programs are replaced. It is not kept.
pub(super) async fn page(State(board): State<Arc<Board>>, uri: Uri) -> impl IntoResponse {
    let keep = if Fields::of_query(&uri).get("v") == board.style.digest { FOR_EVER } else { "no-store" };
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8"), (header::CACHE_CONTROL, keep)], CSS)
}
