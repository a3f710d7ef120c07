//! Topics by their address.

use super::{Operation, change, idempotency_key, one, plain, query, stored, text};

pub(super) fn operations() -> Vec<Operation> {
    let topic = || one("Topic", &["ETag"]);
    let path = "/topics/{name}";
    vec![
        Operation {
            parameters: vec![query("after", text("The name after which to continue."))],
            ..plain("/topics", "get", "topics", "Returns a page of topics", one("TopicsAnswer", &[]))
        },
        plain(path, "get", "topic", "Returns a topic", topic()),
        change(
            plain(
                path,
                "delete",
                "removeTopic",
                "Removes a topic and all its subscriptions",
                one("Removed", &[]),
            ),
            None,
        ),
        change(
            plain("/topics/{name}/subscribe", "post", "subscribe", "Subscribes a queue to a topic", topic()),
            Some("SubscriptionRequest"),
        ),
        change(
            plain(
                "/topics/{name}/unsubscribe",
                "post",
                "unsubscribe",
                "Ends the subscription of a queue",
                topic(),
            ),
            Some("SubscriptionRequest"),
        ),
        Operation {
            parameters: vec![idempotency_key()],
            request: Some("NewJob"),
            ..plain(
                "/topics/{name}/publish",
                "post",
                "publish",
                "Publishes a job: each subscribed queue gets one when it is due",
                stored(),
            )
        },
    ]
}
