//! Why a request is refused, as SDKs read it: an exception in the body, and its older name in a header.
//!
//! SDKs that once spoke the Query protocol look at the header `x-amzn-query-error`, which some read before the body.

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use punctual::{Error, ErrorKind};
use serde::Serialize;

use super::{CONTENT, REQUEST_ID, request_id};
use crate::{
    api::Problem,
    gate::{Refusal, Unsigned},
};

const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");

/// What the names of exceptions begin with: those of SQS, and those of all services.
const OF_SQS: &str = "com.amazonaws.sqs#";
const OF_ALL: &str = "com.amazon.coral.service#";

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) message: String,
}

/// The exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    AccessDenied,
    BatchEntryIdsNotDistinct,
    BatchRequestTooLong,
    EmptyBatchRequest,
    IncompleteSignature,
    InternalFailure,
    InvalidAction,
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidBatchEntryId,
    InvalidClientTokenId,
    InvalidMessageContents,
    InvalidParameterValue,
    MessageNotInflight,
    MissingAuthenticationToken,
    MissingParameter,
    OverLimit,
    QueueDoesNotExist,
    QueueNameExists,
    ReceiptHandleIsInvalid,
    RequestEntityTooLarge,
    RequestExpired,
    SerializationException,
    ServiceUnavailable,
    SignatureDoesNotMatch,
    TooManyEntriesInBatchRequest,
    UnsupportedOperation,
}

impl Code {
    /// Returns the status, whether SQS has the exception in its model, and the names in body and header.
    const fn known(self) -> (StatusCode, bool, &'static str, &'static str) {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        const NO: StatusCode = StatusCode::FORBIDDEN;
        match self {
            Self::AccessDenied => (NO, false, "AccessDeniedException", "AccessDenied"),
            Self::BatchEntryIdsNotDistinct => {
                (BAD, true, "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct")
            }
            Self::BatchRequestTooLong => {
                (BAD, true, "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong")
            }
            Self::EmptyBatchRequest => {
                (BAD, true, "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest")
            }
            Self::IncompleteSignature => (BAD, false, "IncompleteSignature", "IncompleteSignature"),
            Self::InternalFailure => {
                (StatusCode::INTERNAL_SERVER_ERROR, false, "InternalFailure", "InternalFailure")
            }
            Self::InvalidAction => (BAD, false, "InvalidAction", "InvalidAction"),
            Self::InvalidAttributeName => (BAD, true, "InvalidAttributeName", "InvalidAttributeName"),
            Self::InvalidAttributeValue => (BAD, true, "InvalidAttributeValue", "InvalidAttributeValue"),
            Self::InvalidBatchEntryId => {
                (BAD, true, "InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId")
            }
            Self::InvalidClientTokenId => (NO, false, "InvalidClientTokenId", "InvalidClientTokenId"),
            Self::InvalidMessageContents => (BAD, true, "InvalidMessageContents", "InvalidMessageContents"),
            Self::InvalidParameterValue => (BAD, false, "InvalidParameterValue", "InvalidParameterValue"),
            Self::MessageNotInflight => {
                (BAD, true, "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight")
            }
            Self::MissingAuthenticationToken => {
                (NO, false, "MissingAuthenticationToken", "MissingAuthenticationToken")
            }
            Self::MissingParameter => (BAD, false, "MissingParameter", "MissingParameter"),
            Self::OverLimit => (NO, true, "OverLimit", "OverLimit"),
            Self::QueueDoesNotExist => {
                (BAD, true, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
            }
            Self::QueueNameExists => (BAD, true, "QueueNameExists", "QueueAlreadyExists"),
            Self::ReceiptHandleIsInvalid => (BAD, true, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid"),
            Self::RequestEntityTooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, false, "RequestEntityTooLarge", "RequestEntityTooLarge")
            }
            Self::RequestExpired => (BAD, false, "RequestExpired", "RequestExpired"),
            Self::SerializationException => (BAD, false, "SerializationException", "MalformedInput"),
            Self::ServiceUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, false, "ServiceUnavailable", "ServiceUnavailable")
            }
            Self::SignatureDoesNotMatch => (NO, false, "SignatureDoesNotMatch", "SignatureDoesNotMatch"),
            Self::TooManyEntriesInBatchRequest => (
                BAD,
                true,
                "TooManyEntriesInBatchRequest",
                "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
            ),
            Self::UnsupportedOperation => {
                (BAD, true, "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation")
            }
        }
    }

    /// Returns the name that SDKs compare, which entries of a batch have, too.
    pub(super) const fn name(self) -> &'static str {
        self.known().3
    }

    /// Whether the request is to blame, and not the server.
    pub(super) fn is_of_sender(self) -> bool {
        self.known().0.is_client_error()
    }
}

impl Fault {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Of a parameter that is missing.
    pub(super) fn missing(name: &str) -> Self {
        Self::new(Code::MissingParameter, format!("The request must contain the parameter {name}."))
    }

    /// Of a value of a parameter.
    pub(super) fn value(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidParameterValue, message)
    }

    pub(super) fn no_queue() -> Self {
        Self::new(Code::QueueDoesNotExist, "The specified queue does not exist.")
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::UnknownOutcome | ErrorKind::StoreFull => {
                Code::ServiceUnavailable
            }
            ErrorKind::Full => Code::OverLimit,
            ErrorKind::Invalid | ErrorKind::TooLarge => Code::InvalidParameterValue,
            ErrorKind::Forbidden | ErrorKind::Unauthenticated => Code::AccessDenied,
            _ => Code::InternalFailure,
        };
        if !code.is_of_sender() {
            tracing::warn!(target: "punctual", error = %error.with_causes(), "a request of the SQS protocol failed");
        }
        Self::new(code, error.to_string())
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.status {
            StatusCode::UNAUTHORIZED => Code::MissingAuthenticationToken,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Code::ServiceUnavailable,
            _ => Code::AccessDenied,
        };
        Self::new(code, format!("{}. {}", refusal.message, refusal.hint))
    }
}

impl From<Unsigned> for Fault {
    fn from(unsigned: Unsigned) -> Self {
        match unsigned {
            Unsigned::Incomplete(what) => Self::new(Code::IncompleteSignature, what),
            Unsigned::UnknownKey => Self::new(
                Code::InvalidClientTokenId,
                "The security token included in the request is invalid: the access key is the id of no token that signs. \
                 punctual token new NAME --role ROLE --sqs    makes one.",
            ),
            Unsigned::ExpiredKey => Self::new(
                Code::InvalidClientTokenId,
                "The security token included in the request has expired: make another one.",
            ),
            Unsigned::OutOfTime(by) => Self::new(
                Code::RequestExpired,
                format!(
                    "The request was signed {} s from the time of the server, and 900 s are allowed: check the clock of the client.",
                    by.as_secs()
                ),
            ),
            Unsigned::WrongSignature => Self::new(
                Code::SignatureDoesNotMatch,
                "The request signature we calculated does not match the signature you provided. Check your secret access key: it is \
                 not the token itself, and punctual token new --sqs printed it.",
            ),
            Unsigned::Refused(refusal) => refusal.into(),
        }
    }
}

impl From<Problem> for Fault {
    /// Of a body that could not be read.
    fn from(problem: Problem) -> Self {
        let code = match problem.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Code::RequestEntityTooLarge,
            StatusCode::BAD_REQUEST => Code::SerializationException,
            _ => Code::ServiceUnavailable,
        };
        Self::new(code, problem.detail())
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            #[serde(rename = "__type")]
            name: String,
            message: &'a str,
        }
        let (status, is_of_sqs, name, query) = self.code.known();
        let name = format!("{}{name}", if is_of_sqs { OF_SQS } else { OF_ALL });
        let body =
            serde_json::to_vec(&Body { name, message: &self.message }).expect("invariant: texts are JSON");
        let blame = if self.code.is_of_sender() { "Sender" } else { "Receiver" };
        let query = HeaderValue::from_str(&format!("{query};{blame}"))
            .expect("invariant: codes are letters and dots");
        let fixed = [(CONTENT_TYPE, CONTENT), (REQUEST_ID, request_id())];
        (status, fixed, [(QUERY_ERROR, query)], body).into_response()
    }
}
