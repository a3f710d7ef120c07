//! A payload or result as people can read it: the bytes as they are stored, so that no digit of a number is lost.

use punctual::Payload;

use super::text::size;

/// The most bytes that are shown.
pub(super) const SHOWN_MAX: usize = 64 * 1024;

/// A payload or result.
pub(super) struct Content {
    pub(super) media_type: String,
    pub(super) size: String,
    /// `None` for bytes that are not text.
    pub(super) text: Option<String>,
    /// Why it is hidden, if it is.
    pub(super) hidden: Option<&'static str>,
    pub(super) is_cut: bool,
}

impl Content {
    pub(super) fn new(payload: &Payload, hidden: Option<&'static str>) -> Self {
        let text = std::str::from_utf8(&payload.bytes).ok().filter(|_| hidden.is_none());
        let cut = text.map(|text| &text[..text.floor_char_boundary(SHOWN_MAX)]);
        Self {
            media_type: payload.content_type.clone().into_owned(),
            size: size(payload.bytes.len() as u64),
            text: cut.map(str::to_owned),
            hidden,
            is_cut: cut.map(str::len) < text.map(str::len),
        }
    }
}
