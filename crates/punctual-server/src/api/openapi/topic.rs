//! Topics.

use serde_json::json;

use super::shape::{Schemas, closed, list, open, reference, text, whole};

pub(super) fn schemas() -> Schemas {
    let names = |description| list(&json!({"type": "string"}), description);
    vec![
        (
            "Topic",
            open(
                "A topic.",
                [
                    ("name", text("Its name.")),
                    ("version", whole("Its version. It rises with each change.")),
                    ("queues", names("The subscribed queues, at most 1,000.")),
                ],
            ),
        ),
        (
            "TopicsAnswer",
            open(
                "A page of topics.",
                [
                    ("topics", list(&reference("Topic"), "Topics by name, at most 1,000.")),
                    ("unreadable", names("Names of topics that cannot be read. They can be removed.")),
                    ("next?", text("The name after which to continue. It is absent after the last page.")),
                ],
            ),
        ),
        ("SubscriptionRequest", closed("A subscription.", [("queue", text("The queue, 1 to 255 bytes."))])),
    ]
}
