//! The attributes of a queue that a caller can set, and their texts.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    fault::{Code, Fault},
    message::BYTES_MAX,
    queue::{self, ACCOUNT},
};

const DELAY: &str = "DelaySeconds";
const SIZE: &str = "MaximumMessageSize";
const RETENTION: &str = "MessageRetentionPeriod";
const WAIT: &str = "ReceiveMessageWaitTimeSeconds";
const VISIBILITY: &str = "VisibilityTimeout";
const REDRIVE: &str = "RedrivePolicy";
const FIFO: &str = "FifoQueue";
const BY_CONTENT: &str = "ContentBasedDeduplication";
const DEDUPLICATION_SCOPE: &str = "DeduplicationScope";
const THROUGHPUT_LIMIT: &str = "FifoThroughputLimit";
/// The default of SQS, in seconds.
const KMS_REUSE_DEFAULT: &str = "300";
const MANAGED_SSE: &str = "SqsManagedSseEnabled";

/// The longest wait of a receive, in seconds.
pub(super) const WAIT_MAX_S: u64 = 20;
/// The longest visibility timeout, in seconds.
pub(super) const VISIBILITY_MAX_S: u64 = 43_200;
/// The longest delay of a message, and the longest default of a queue, in seconds: a year. SQS allows 15 min.
pub(super) const DELAY_MAX_S: u64 = 366 * 86_400;
/// How often a message can be received before it is moved to a dead-letter queue.
const RECEIVES: RangeInclusive<u32> = 1..=1_000;

/// What a caller can set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attributes {
    pub(super) delay_s: u64,
    pub(super) size_bytes: usize,
    pub(super) retention_s: u64,
    pub(super) wait_s: u64,
    pub(super) visibility_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) redrive: Option<Redrive>,
    /// Whether the content of a message says which others are the same.
    #[serde(default)]
    pub(super) by_content: bool,
}

/// Where messages go that were received too often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Redrive {
    /// The name of the dead-letter queue.
    pub(super) queue: String,
    /// How often a message can be received.
    pub(super) receives: u32,
}

impl Default for Attributes {
    /// The defaults of SQS.
    fn default() -> Self {
        Self {
            delay_s: 0,
            size_bytes: BYTES_MAX,
            retention_s: 345_600,
            wait_s: 0,
            visibility_s: 30,
            redrive: None,
            by_content: false,
        }
    }
}

impl Attributes {
    /// Changes what is given. `name` is that of the queue. The caller must check that the dead-letter queue may be named, and is there.
    pub(super) fn set(&mut self, name: &str, given: &BTreeMap<String, String>) -> Result<(), Fault> {
        let is_fifo = queue::is_fifo(name);
        for (attribute, value) in given {
            match attribute.as_str() {
                DELAY => self.delay_s = number(DELAY, value, 0..=DELAY_MAX_S)?,
                SIZE => self.size_bytes = number(SIZE, value, 1_024..=BYTES_MAX as u64)? as usize,
                RETENTION => self.retention_s = number(RETENTION, value, 60..=1_209_600)?,
                WAIT => self.wait_s = number(WAIT, value, 0..=WAIT_MAX_S)?,
                VISIBILITY => self.visibility_s = number(VISIBILITY, value, 0..=VISIBILITY_MAX_S)?,
                REDRIVE => self.redrive = redrive(name, value)?,
                BY_CONTENT if is_fifo => self.by_content = flag(BY_CONTENT, value)?,
                FIFO if flag(FIFO, value)? == is_fifo => {}
                FIFO => {
                    return Err(Fault::value(
                        "The name of a FIFO queue can only end with '.fifo', and the attribute FifoQueue must say so.",
                    ));
                }
                // What this server does for all FIFO queues, or the default of SQS, which changes as little as no value.
                DEDUPLICATION_SCOPE if is_fifo && matches!(value.as_str(), "messageGroup" | "queue") => {}
                THROUGHPUT_LIMIT if is_fifo && matches!(value.as_str(), "perMessageGroupId" | "perQueue") => {
                }
                DEDUPLICATION_SCOPE | THROUGHPUT_LIMIT if is_fifo => {
                    return Err(wrong(attribute, "this server compares messages within their message group"));
                }
                BY_CONTENT if !flag(BY_CONTENT, value)? => {}
                MANAGED_SSE if flag(MANAGED_SSE, value).is_ok() => {}
                "KmsDataKeyReusePeriodSeconds" if value == KMS_REUSE_DEFAULT => {}
                "RedriveAllowPolicy" if allows_all(value) => {}
                BY_CONTENT | DEDUPLICATION_SCOPE | THROUGHPUT_LIMIT => {
                    return Err(unknown(attribute, "is for FIFO queues"));
                }
                "Policy"
                | "KmsMasterKeyId"
                | "KmsDataKeyReusePeriodSeconds"
                | "RedriveAllowPolicy"
                | MANAGED_SSE
                    if value.is_empty() => {}
                "Policy"
                | "KmsMasterKeyId"
                | "KmsDataKeyReusePeriodSeconds"
                | "RedriveAllowPolicy"
                | MANAGED_SSE => {
                    return Err(unknown(
                        attribute,
                        "is not supported by this server: tokens say who may do what",
                    ));
                }
                _ => return Err(unknown(attribute, "is unknown")),
            }
        }
        Ok(())
    }

    /// Returns all of them as texts. `region` is for ARNs.
    pub(super) fn texts(&self, name: &str, region: &str) -> BTreeMap<&'static str, String> {
        let mut texts = BTreeMap::from([
            (DELAY, self.delay_s.to_string()),
            (SIZE, self.size_bytes.to_string()),
            (RETENTION, self.retention_s.to_string()),
            (WAIT, self.wait_s.to_string()),
            (VISIBILITY, self.visibility_s.to_string()),
            (MANAGED_SSE, "false".to_owned()),
        ]);
        if let Some(Redrive { queue, receives }) = &self.redrive {
            let policy = serde_json::json!({
                "deadLetterTargetArn": arn(region, queue),
                "maxReceiveCount": receives,
            });
            texts.insert(REDRIVE, policy.to_string());
        }
        if queue::is_fifo(name) {
            texts.insert(FIFO, "true".to_owned());
            texts.insert(BY_CONTENT, self.by_content.to_string());
            texts.insert(DEDUPLICATION_SCOPE, "messageGroup".to_owned());
            texts.insert(THROUGHPUT_LIMIT, "perMessageGroupId".to_owned());
        }
        texts
    }

    /// Returns how long a received message is hidden. The shortest lease of a store is 1 s.
    pub(super) fn visibility(&self, given_s: Option<i64>) -> Result<Duration, Fault> {
        let seconds = match given_s {
            None => self.visibility_s,
            Some(given) => within(VISIBILITY, given, 0..=VISIBILITY_MAX_S)?,
        };
        Ok(Duration::from_secs(seconds.max(1)))
    }
}

/// Checks that a caller who makes a FIFO queue says so, as SQS does. Its name could end so by accident.
pub(super) fn check_new(name: &str, given: &BTreeMap<String, String>) -> Result<(), Fault> {
    if queue::is_fifo(name) && !given.contains_key(FIFO) {
        return Err(Fault::value(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length. The name of a FIFO queue ends with \
             .fifo, and its attribute FifoQueue is true.",
        ));
    }
    Ok(())
}

/// Returns the ARN of a queue.
pub(super) fn arn(region: &str, name: &str) -> String {
    format!("arn:aws:sqs:{region}:{ACCOUNT}:{name}")
}

/// Checks a number of a request.
pub(super) fn within(name: &str, given: i64, allowed: RangeInclusive<u64>) -> Result<u64, Fault> {
    let value = u64::try_from(given).ok().filter(|value| allowed.contains(value));
    value.ok_or_else(|| {
        let (least, most) = allowed.into_inner();
        Fault::value(format!(
            "Value {given} for parameter {name} is invalid. Reason: Must be between {least} and {most}, if provided."
        ))
    })
}

fn wrong(name: &str, why: &str) -> Fault {
    Fault::new(Code::InvalidAttributeValue, format!("Invalid value for the parameter {name}: {why}."))
}

fn unknown(name: &str, why: &str) -> Fault {
    Fault::new(Code::InvalidAttributeName, format!("Unknown Attribute {name}: it {why}."))
}

fn number(name: &str, text: &str, allowed: RangeInclusive<u64>) -> Result<u64, Fault> {
    let value = text.parse::<u64>().ok().filter(|value| allowed.contains(value));
    value.ok_or_else(|| {
        let (least, most) = allowed.into_inner();
        wrong(name, &format!("{least} to {most} are allowed"))
    })
}

fn flag(name: &str, text: &str) -> Result<bool, Fault> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(wrong(name, "true and false are allowed")),
    }
}

/// Returns whether a policy lets each queue name this one as its dead-letter queue, which is the default of SQS.
fn allows_all(text: &str) -> bool {
    let policy = serde_json::from_str(text).unwrap_or(serde_json::Value::Null);
    policy == serde_json::json!({"redrivePermission": "allowAll"})
}

/// Reads a redrive policy; an empty text is none.
fn redrive(name: &str, text: &str) -> Result<Option<Redrive>, Fault> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Policy {
        dead_letter_target_arn: String,
        max_receive_count: Count,
    }
    /// SDKs send a number, and people a text.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Count {
        Number(u32),
        Text(String),
    }
    if text.is_empty() {
        return Ok(None);
    }
    let policy: Policy = serde_json::from_str(text)
        .map_err(|_| wrong(REDRIVE, "it is JSON with a deadLetterTargetArn and a maxReceiveCount"))?;
    let receives = match policy.max_receive_count {
        Count::Number(number) => Some(number),
        Count::Text(text) => text.parse().ok(),
    };
    let receives = receives.filter(|receives| RECEIVES.contains(receives)).ok_or_else(|| {
        wrong(REDRIVE, &format!("maxReceiveCount is {} to {}", RECEIVES.start(), RECEIVES.end()))
    })?;
    let queue = queue::name_of_arn(&policy.dead_letter_target_arn)
        .ok_or_else(|| wrong(REDRIVE, "deadLetterTargetArn is not the ARN of a queue"))?;
    if queue == name {
        return Err(wrong(REDRIVE, "a queue cannot be its own dead-letter queue"));
    }
    if queue::is_fifo(queue) != queue::is_fifo(name) {
        return Err(wrong(
            REDRIVE,
            "the dead-letter queue of a FIFO queue must be a FIFO queue, and that of another must not",
        ));
    }
    Ok(Some(Redrive { queue: queue.to_owned(), receives }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, attribute: &str, value: &str) -> Result<Attributes, Code> {
        let mut attributes = Attributes::default();
        let given = BTreeMap::from([(attribute.to_owned(), value.to_owned())]);
        attributes.set(name, &given).map(|()| attributes).map_err(|fault| fault.code)
    }

    #[test]
    fn each_attribute_has_its_bounds() {
        for (attribute, least, most) in [
            (DELAY, "0", "31622400"),
            (SIZE, "1024", "1048576"),
            (RETENTION, "60", "1209600"),
            (WAIT, "0", "20"),
            (VISIBILITY, "0", "43200"),
        ] {
            for value in [least, most] {
                let texts = set("q", attribute, value).unwrap().texts("q", "r");
                assert_eq!(texts[attribute], value);
            }
            let over = (most.parse::<u64>().unwrap() + 1).to_string();
            for value in ["", "-1", "x", "1.5", &over] {
                assert_eq!(
                    set("q", attribute, value),
                    Err(Code::InvalidAttributeValue),
                    "{attribute} {value}"
                );
            }
        }
    }

    #[test]
    fn what_is_for_fifo_queues_is_for_these() {
        assert!(set("q.fifo", BY_CONTENT, "true").unwrap().by_content);
        assert_eq!(set("q", BY_CONTENT, "true"), Err(Code::InvalidAttributeName));
        assert!(set("q.fifo", FIFO, "true").is_ok() && set("q", FIFO, "false").is_ok());
        assert!(set("q", FIFO, "true").is_err() && set("q.fifo", FIFO, "false").is_err());
        assert!(set("q.fifo", DEDUPLICATION_SCOPE, "messageGroup").is_ok());
        assert_eq!(set("q.fifo", DEDUPLICATION_SCOPE, "group"), Err(Code::InvalidAttributeValue));
        assert_eq!(set("q", "Colour", "red"), Err(Code::InvalidAttributeName));
        assert_eq!(set("q", "Policy", "{}"), Err(Code::InvalidAttributeName));
    }

    /// Tools such as Terraform spell all attributes. What they leave as it is must not be refused.
    #[test]
    fn the_defaults_of_sqs_are_accepted() {
        let of_all = [
            (DELAY, "0"),
            (SIZE, "262144"),
            (RETENTION, "345600"),
            (WAIT, "0"),
            (VISIBILITY, "30"),
            (MANAGED_SSE, "true"),
            (MANAGED_SSE, "false"),
            ("Policy", ""),
            ("KmsMasterKeyId", ""),
            ("KmsDataKeyReusePeriodSeconds", "300"),
            ("RedriveAllowPolicy", r#"{"redrivePermission":"allowAll"}"#),
            (FIFO, "false"),
            (BY_CONTENT, "false"),
        ];
        for (attribute, value) in of_all {
            assert!(set("q", attribute, value).is_ok(), "{attribute} {value}");
        }
        for (attribute, value) in
            [(DEDUPLICATION_SCOPE, "queue"), (THROUGHPUT_LIMIT, "perQueue"), (BY_CONTENT, "false")]
        {
            assert!(set("q.fifo", attribute, value).is_ok(), "{attribute} {value}");
        }
        for (attribute, value) in [
            (MANAGED_SSE, "yes"),
            ("KmsMasterKeyId", "alias/aws/sqs"),
            ("KmsDataKeyReusePeriodSeconds", "60"),
            ("RedriveAllowPolicy", r#"{"redrivePermission":"denyAll"}"#),
            (DEDUPLICATION_SCOPE, "queue"),
        ] {
            assert!(set("q", attribute, value).is_err(), "{attribute} {value}");
        }
    }

    #[test]
    fn a_redrive_policy_names_a_queue_of_the_same_kind() {
        let policy = |name: &str, count: &str| {
            format!(
                r#"{{"deadLetterTargetArn":"arn:aws:sqs:r:000000000000:{name}","maxReceiveCount":{count}}}"#
            )
        };
        let right = set("q", REDRIVE, &policy("dead", "3")).unwrap();
        assert_eq!(right.redrive, Some(Redrive { queue: "dead".to_owned(), receives: 3 }));
        assert_eq!(set("q", REDRIVE, &policy("dead", "\"3\"")).unwrap(), right);
        assert_eq!(set("q", REDRIVE, "").unwrap().redrive, None);
        for (name, count) in [
            ("q", "3"),
            ("dead.fifo", "3"),
            ("$topics", "3"),
            ("dead", "0"),
            ("dead", "1001"),
            ("dead", "\"x\""),
        ] {
            assert_eq!(
                set("q", REDRIVE, &policy(name, count)),
                Err(Code::InvalidAttributeValue),
                "{name} {count}"
            );
        }
        assert_eq!(set("q", REDRIVE, "{}"), Err(Code::InvalidAttributeValue));
    }
}
