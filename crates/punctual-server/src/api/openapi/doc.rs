//! Documents.

use punctual::limits::BATCH_MAX;
use serde_json::{Value, json};

use super::shape::{
    Schemas, closed, flag, list, one_of, open, or_null, reference, tagged, text, whole, within,
};

fn value() -> Value {
    json!({
        "description": "The value, at most 64 KiB: text, or bytes as a list of numbers.",
        "oneOf": [{"type": "string"}, {"type": "array", "items": within(0, 255, "")}],
    })
}

pub(super) fn schemas() -> Schemas {
    let key = || ("key", text("The key, 1 to 255 bytes."));
    let condition = json!({
        "description": "The condition of the change.",
        "oneOf": [
            {"enum": ["always", "if_absent"]},
            tagged("if_version", whole("Only if the document has this version.")),
        ],
    });
    let pages = [
        ("prefix", text("The prefix of the keys; empty for all.")),
        ("after?", or_null(text("The key after which to start."))),
        ("limit", within(1, BATCH_MAX as u64, "The most documents.")),
    ];
    let put = [key(), ("precondition", condition.clone()), ("value", value())];
    let request = one_of(
        "A step on documents.",
        [
            tagged("get", closed("Returns a document.", [key()])),
            tagged("list", closed("Returns documents by key.", pages)),
            tagged("put", closed("Creates or replaces a document.", put)),
            tagged("remove", closed("Removes a document.", [key(), ("precondition", condition)])),
        ],
    );
    let page = [
        ("docs", list(&reference("Document"), "The documents, by key.")),
        ("more", flag("Whether there are more.")),
    ];
    let or_none = || or_null(reference("Document"));
    let answer = one_of(
        "The answer to the step.",
        [
            tagged("is", or_none()),
            tagged("conflict", or_none()),
            tagged("page", open("A page of documents.", page)),
        ],
    );
    vec![
        ("DocRequest", request),
        ("DocAnswer", answer),
        (
            "Document",
            open(
                "A document.",
                [key(), ("version", whole("The version. It is never reused.")), ("value", value())],
            ),
        ),
    ]
}
