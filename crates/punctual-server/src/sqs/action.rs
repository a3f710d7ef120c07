//! The actions: which there are, what right each needs, and who answers it.

use serde::de::DeserializeOwned;

use super::{
    Call, Reply,
    fault::{Code, Fault},
    queues, receive, send, settle, tags,
};
use crate::gate::Right;

/// What the names of actions begin with, in the header `X-Amz-Target`.
const TARGET: &str = "AmazonSQS.";

/// Actions of SQS that this server does not have.
const OTHERS: [&str; 6] = [
    "AddPermission",
    "CancelMessageMoveTask",
    "ListDeadLetterSourceQueues",
    "ListMessageMoveTasks",
    "RemovePermission",
    "StartMessageMoveTask",
];

/// An action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    CreateQueue,
    DeleteMessage,
    DeleteMessageBatch,
    DeleteQueue,
    GetQueueAttributes,
    GetQueueUrl,
    ListQueueTags,
    ListQueues,
    PurgeQueue,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
    SetQueueAttributes,
    TagQueue,
    UntagQueue,
}

impl Action {
    const ALL: [Self; 17] = [
        Self::ChangeMessageVisibility,
        Self::ChangeMessageVisibilityBatch,
        Self::CreateQueue,
        Self::DeleteMessage,
        Self::DeleteMessageBatch,
        Self::DeleteQueue,
        Self::GetQueueAttributes,
        Self::GetQueueUrl,
        Self::ListQueueTags,
        Self::ListQueues,
        Self::PurgeQueue,
        Self::ReceiveMessage,
        Self::SendMessage,
        Self::SendMessageBatch,
        Self::SetQueueAttributes,
        Self::TagQueue,
        Self::UntagQueue,
    ];

    /// Reads the action that a request names in its header.
    pub(super) fn of(target: &str) -> Result<Self, Fault> {
        let name = target.strip_prefix(TARGET).unwrap_or_default();
        if OTHERS.contains(&name) {
            return Err(Fault::new(
                Code::UnsupportedOperation,
                format!("This server does not have the action {name}."),
            ));
        }
        let found = Self::ALL.into_iter().find(|action| format!("{action:?}") == name);
        found.ok_or_else(|| {
            Fault::new(
                Code::InvalidAction,
                "The header X-Amz-Target names no action, such as AmazonSQS.SendMessage.",
            )
        })
    }

    /// Returns the right that it needs in its queue.
    pub(super) const fn right(self) -> Right {
        match self {
            Self::GetQueueAttributes | Self::GetQueueUrl | Self::ListQueueTags | Self::ListQueues => {
                Right::Read
            }
            Self::ChangeMessageVisibility
            | Self::ChangeMessageVisibilityBatch
            | Self::DeleteMessage
            | Self::DeleteMessageBatch
            | Self::ReceiveMessage
            | Self::SendMessage
            | Self::SendMessageBatch => Right::Operate,
            Self::CreateQueue
            | Self::DeleteQueue
            | Self::PurgeQueue
            | Self::SetQueueAttributes
            | Self::TagQueue
            | Self::UntagQueue => Right::Admin,
        }
    }

    /// Answers a request.
    pub(super) async fn answer(self, call: &Call, body: &[u8]) -> Reply {
        match self {
            Self::ChangeMessageVisibility => settle::change(call, read(body)?).await,
            Self::ChangeMessageVisibilityBatch => settle::change_batch(call, read(body)?).await,
            Self::CreateQueue => queues::create(call, read(body)?).await,
            Self::DeleteMessage => settle::delete(call, read(body)?).await,
            Self::DeleteMessageBatch => settle::delete_batch(call, read(body)?).await,
            Self::DeleteQueue => queues::delete(call, read(body)?).await,
            Self::GetQueueAttributes => queues::attributes(call, read(body)?).await,
            Self::GetQueueUrl => queues::url(call, read(body)?).await,
            Self::ListQueueTags => tags::list(call, read(body)?).await,
            Self::ListQueues => queues::list(call, read(body)?).await,
            Self::PurgeQueue => queues::purge(call, read(body)?).await,
            Self::ReceiveMessage => receive::receive(call, read(body)?).await,
            Self::SendMessage => send::send(call, read(body)?).await,
            Self::SendMessageBatch => send::send_batch(call, read(body)?).await,
            Self::SetQueueAttributes => queues::set(call, read(body)?).await,
            Self::TagQueue => tags::add(call, read(body)?).await,
            Self::UntagQueue => tags::remove(call, read(body)?).await,
        }
    }
}

/// Reads a body. Its whole length was checked before.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    let body: &[u8] = if body.trim_ascii().is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|e| {
        let text = e.to_string();
        // serde says so of a field without a default.
        match text.split('`').nth(1).filter(|_| text.starts_with("missing field")) {
            Some(field) => Fault::missing(field),
            None => Fault::new(Code::SerializationException, format!("The body could not be read: {text}")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_an_action() {
        assert_eq!(Action::of("AmazonSQS.SendMessage"), Ok(Action::SendMessage));
        for (target, code) in [
            ("AmazonSQS.StartMessageMoveTask", Code::UnsupportedOperation),
            ("AmazonSQS.Send", Code::InvalidAction),
            ("SendMessage", Code::InvalidAction),
            ("AmazonSNS.SendMessage", Code::InvalidAction),
            ("", Code::InvalidAction),
        ] {
            assert_eq!(Action::of(target).unwrap_err().code, code, "{target}");
        }
    }
}
