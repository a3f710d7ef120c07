//! Bodies of the calls around leases: reserve, extend, settle, take.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    items,
    line::split,
    record::{payload, present},
    view::{JobView, ResultView, exact},
};
use crate::{
    core::{
        error::{Error, Result},
        id::JobId,
        job::{JobRecord, State},
        json::{ms, opt_hex, opt_ms},
        time::{Timestamp, When},
    },
    store::{
        Batch, CallId, EndReason, Lease, LeaseStatus, QueueRequest, Reclaimed, Reserve, Reserved, Settled,
        Settlement, Take, Verdict,
    },
};

/// The body of a reserve.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveBody {
    /// A random number of the caller, as hexadecimal digits. Without it, a repeated call reserves more jobs.
    #[serde(default, with = "opt_hex", skip_serializing_if = "Option::is_none")]
    pub instance: Option<u128>,
    /// The number of the call, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
    /// The name of the worker, for people.
    #[serde(default)]
    pub worker: String,
    /// The queues in their order: names, or requests with shares.
    pub queues: Vec<QueueBody>,
    /// The most jobs, 1 to 1,000.
    pub max: usize,
    /// The length of the leases in milliseconds (default: that of each job, else of its queue, else 15 s).
    #[serde(default, with = "opt_ms", rename = "lease_ms", skip_serializing_if = "Option::is_none")]
    pub lease: Option<Duration>,
    /// Whether other jobs run in this worker. A suspect is then not reserved.
    #[serde(default)]
    pub company: bool,
}

/// A queue of a reserve.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum QueueBody {
    /// All jobs of this queue.
    Name(String),
    /// With a share and a bound.
    Request(QueueRequest),
}

impl From<&Reserve> for ReserveBody {
    fn from(want: &Reserve) -> Self {
        Self {
            instance: Some(want.call.instance.into()),
            call: Some(want.call.number),
            worker: want.worker.clone(),
            queues: want.queues.iter().cloned().map(QueueBody::Request).collect(),
            max: want.n,
            lease: want.lease,
            company: want.company,
        }
    }
}

impl ReserveBody {
    /// Returns the number of the call; `None` if the caller gave none.
    ///
    /// # Errors
    /// `Invalid` if the caller gave only one half of it.
    pub fn number(&self) -> Result<Option<CallId>> {
        super::number(self.instance, self.call)
    }

    /// Returns the reserve with this number.
    pub fn reserve(self, call: CallId) -> Reserve {
        let of = |queue| match queue {
            QueueBody::Name(queue) => QueueRequest { queue, share: 0, at_most: self.max },
            QueueBody::Request(request) => request,
        };
        Reserve {
            call,
            worker: self.worker,
            queues: self.queues.into_iter().map(of).collect(),
            n: self.max,
            lease: self.lease,
            company: self.company,
        }
    }
}

/// A reserved job. `J` is the form of the job.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReservedBody<J> {
    /// The id of the job.
    pub id: JobId,
    /// The fence of the lease.
    pub fence: u64,
    /// The end of the lease.
    pub until_ms: Timestamp,
    /// The length of the lease in milliseconds.
    #[serde(with = "ms", rename = "lasts_ms")]
    pub lasts: Duration,
    /// The job.
    pub job: J,
}

/// The answer to a reserve. `J` is the form of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct BatchBody<J> {
    /// The time by the store's clock.
    pub now_ms: Timestamp,
    /// The jobs.
    pub jobs: Vec<ReservedBody<J>>,
    /// Whether more jobs are due.
    pub more: bool,
    /// The time until the next job is due, in milliseconds.
    #[serde(default, with = "opt_ms", rename = "next_due_ms", skip_serializing_if = "Option::is_none")]
    pub next_due: Option<Duration>,
    /// The expired leases that were reclaimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reclaimed: Vec<Reclaimed>,
}

impl<'a> From<&'a Batch> for BatchBody<JobView<'a>> {
    fn from(batch: &'a Batch) -> Self {
        let of = |reserved: &'a Reserved| ReservedBody {
            id: reserved.lease.job,
            fence: reserved.lease.fence,
            until_ms: reserved.until,
            lasts: reserved.lasts,
            job: JobView::exact(&reserved.job, batch.now),
        };
        Self {
            now_ms: batch.now,
            jobs: batch.jobs.iter().map(of).collect(),
            more: batch.more,
            next_due: batch.next_due,
            reclaimed: batch.reclaimed.clone(),
        }
    }
}

impl From<BatchBody<JobRecord>> for Batch {
    fn from(body: BatchBody<JobRecord>) -> Self {
        let of = |reserved: ReservedBody<JobRecord>| Reserved {
            lease: Lease { job: reserved.id, fence: reserved.fence },
            until: reserved.until_ms,
            lasts: reserved.lasts,
            job: reserved.job,
        };
        Self {
            now: body.now_ms,
            jobs: body.jobs.into_iter().map(of).collect(),
            more: body.more,
            next_due: body.next_due,
            reclaimed: body.reclaimed,
        }
    }
}

/// The body of an extend. `B` is a heartbeat.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtendBody<B> {
    /// The leases, with what their runs report: at most 1,000.
    #[serde(deserialize_with = "items", bound(deserialize = "B: Deserialize<'de>"))]
    pub leases: Vec<B>,
}

/// The answer to an extend, in order.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExtendReply {
    /// What became of each lease.
    pub results: Vec<LeaseStatus>,
}

/// The end of a lease.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettlementBody<'a> {
    /// The job. Required.
    pub id: Option<JobId>,
    /// The fence of the lease. Required.
    pub fence: Option<u64>,
    /// `ack`, `retry`, `retry_after`, `snooze`, `release`, `cancel` or `dead`. Required.
    #[serde(default)]
    pub verdict: String,
    /// For `retry`, `retry_after` and `snooze`: the pause in milliseconds. Without it, a `retry` follows the job's backoff.
    pub after_ms: Option<u64>,
    /// For `retry` and `retry_after`: the time of the next attempt.
    pub at_ms: Option<Timestamp>,
    /// For `retry`, `retry_after` and `dead`: the error.
    pub error: Option<String>,
    /// For `snooze` and `cancel`: the reason.
    pub reason: Option<String>,
    /// For `ack`: the result as JSON or text.
    #[serde(borrow, default, deserialize_with = "present")]
    pub result: Option<&'a RawValue>,
    /// For `ack`: the result in base64.
    pub result_base64: Option<String>,
    /// The type of the result (default: JSON).
    pub result_content_type: Option<String>,
}

impl SettlementBody<'_> {
    /// Returns the lease.
    ///
    /// # Errors
    /// `Invalid` if a part is missing.
    pub fn lease(&self) -> Result<Lease> {
        let missing = |what: &str| Error::invalid(format!("{what} is missing"));
        Ok(Lease {
            job: self.id.ok_or_else(|| missing("id"))?,
            fence: self.fence.ok_or_else(|| missing("fence"))?,
        })
    }

    /// Returns whether the time of the next attempt is left to the job's backoff.
    pub fn follows_backoff(&self) -> bool {
        self.verdict == "retry" && self.after_ms.is_none() && self.at_ms.is_none()
    }

    /// Returns the settlement. `pause` is the time of the next attempt if the caller left it to the job's backoff.
    ///
    /// # Errors
    /// `Invalid` for an unknown verdict, a missing field, or a field that does not belong to the verdict.
    pub fn settlement(self, pause: Option<When>) -> Result<Settlement> {
        let lease = self.lease()?;
        let allowed: &[&str] = match self.verdict.as_str() {
            "ack" => &["result"],
            "retry" | "retry_after" => &["after_ms", "at_ms", "error"],
            "snooze" => &["after_ms", "reason"],
            "release" => &[],
            "cancel" => &["reason"],
            "dead" => &["error"],
            "" => return Err(Error::invalid("verdict is missing").with_hint(VERDICTS)),
            other => {
                let shown: String = other.chars().take(32).collect();
                return Err(Error::invalid(format!("{shown:?} is no verdict")).with_hint(VERDICTS));
            }
        };
        let given = [
            ("after_ms", self.after_ms.is_some()),
            ("at_ms", self.at_ms.is_some()),
            ("error", self.error.is_some()),
            ("reason", self.reason.is_some()),
            ("result", self.result.is_some() || self.result_base64.is_some()),
        ];
        if let Some((field, _)) = given.iter().find(|(field, given)| *given && !allowed.contains(field)) {
            return Err(Error::invalid(format!("{field} does not belong to the verdict {}", self.verdict)));
        }
        let at = || match (self.after_ms, self.at_ms, pause) {
            (Some(_), Some(_), _) => Err(Error::invalid("after_ms and at_ms are both given")),
            (Some(after), None, _) => Ok(When::In(Duration::from_millis(after))),
            (None, Some(at), _) => Ok(When::At(at)),
            (None, None, Some(pause)) => Ok(pause),
            (None, None, None) => Ok(When::Now),
        };
        let error = self.error.clone().unwrap_or_default();
        let verdict = match self.verdict.as_str() {
            "retry" => Verdict::Retry { at: at()?, error },
            "retry_after" => Verdict::RetryAfter { at: at()?, error },
            "snooze" => {
                let after = self.after_ms.ok_or_else(|| Error::invalid("after_ms is missing"))?;
                Verdict::Snooze { after: Duration::from_millis(after), reason: self.reason }
            }
            "release" => Verdict::Release,
            "cancel" => Verdict::Cancel { reason: self.reason },
            "dead" => Verdict::Dead { error },
            _ => match payload(self.result, self.result_base64, self.result_content_type)? {
                Some(result) => Verdict::AckWith { result },
                None => Verdict::Ack,
            },
        };
        Ok(Settlement { lease, verdict })
    }
}

const VERDICTS: &str = "write ack, retry, retry_after, snooze, release, cancel or dead";

/// A [`Settlement`] as [`SettlementBody`] reads it.
#[derive(Debug, Serialize)]
pub struct SettlementView<'a> {
    id: JobId,
    fence: u64,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(flatten)]
    result: ResultView<'a>,
}

impl<'a> From<&'a Settlement> for SettlementView<'a> {
    fn from(settlement: &'a Settlement) -> Self {
        let lease = settlement.lease;
        let mut view = Self {
            id: lease.job,
            fence: lease.fence,
            verdict: "",
            after_ms: None,
            at_ms: None,
            error: None,
            reason: None,
            result: ResultView::default(),
        };
        // An explicit pause of 0, since its absence means the job's backoff.
        let split = |at: When| if at == When::Now { (Some(0), None) } else { split(at) };
        match &settlement.verdict {
            Verdict::Ack => view.verdict = "ack",
            Verdict::AckWith { result } => (view.verdict, view.result) = ("ack", exact(result).into()),
            Verdict::Retry { at, error } => {
                (view.verdict, view.error) = ("retry", Some(error.as_str()));
                (view.after_ms, view.at_ms) = split(*at);
            }
            Verdict::RetryAfter { at, error } => {
                (view.verdict, view.error) = ("retry_after", Some(error.as_str()));
                (view.after_ms, view.at_ms) = split(*at);
            }
            Verdict::Snooze { after, reason } => {
                (view.verdict, view.reason) = ("snooze", reason.as_deref());
                (view.after_ms, _) = split(When::In(*after));
            }
            Verdict::Release => view.verdict = "release",
            Verdict::Cancel { reason } => (view.verdict, view.reason) = ("cancel", reason.as_deref()),
            Verdict::Dead { error } => (view.verdict, view.error) = ("dead", Some(error.as_str())),
        }
        view
    }
}

/// The body of a settle. `S` is the form of a settlement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleBody<S> {
    /// The leases to end, in order: at most 1,000.
    #[serde(deserialize_with = "items", bound(deserialize = "S: Deserialize<'de>"))]
    pub settle: Vec<S>,
    /// What to reserve then, in the same step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<ReserveBody>,
}

/// What became of a lease that was settled.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum SettledBody {
    /// The run ended.
    Settled {
        /// The state of the job now.
        state: State,
        /// Why the store ended the job, if that is not what the verdict says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<EndReason>,
    },
    /// The lease is not current any more. Nothing was changed.
    LeaseLost,
    /// A part of the store is unavailable.
    Away {
        /// Whether the call may have arrived.
        sent: bool,
    },
}

impl From<Settled> for SettledBody {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Settled(state, reason) => Self::Settled { state, reason },
            Settled::LeaseLost => Self::LeaseLost,
            Settled::Away { sent } => Self::Away { sent },
        }
    }
}

impl From<SettledBody> for Settled {
    fn from(body: SettledBody) -> Self {
        match body {
            SettledBody::Settled { state, reason } => Self::Settled(state, reason),
            SettledBody::LeaseLost => Self::LeaseLost,
            SettledBody::Away { sent } => Self::Away { sent },
        }
    }
}

/// The answer to a settle, in order.
#[derive(Debug, Serialize, Deserialize)]
pub struct SettleReply<J> {
    /// What became of each lease.
    pub results: Vec<SettledBody>,
    /// The answer to the reserve, if there was one and its shard replied.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchBody<J>>,
}

const fn none<T>() -> Option<T> {
    None
}

/// The body of a take.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeBody {
    /// The queue.
    pub queue: String,
    /// The most jobs, 1 to 1,000.
    pub max: usize,
    /// How long jobs must have been due, in milliseconds (default: 0).
    #[serde(default, with = "ms", rename = "older_than_ms")]
    pub older_than: Duration,
}

impl From<&Take> for TakeBody {
    fn from(take: &Take) -> Self {
        Self { queue: take.queue.clone(), max: take.n, older_than: take.older_than }
    }
}

impl From<TakeBody> for Take {
    fn from(body: TakeBody) -> Self {
        Self { queue: body.queue, n: body.max, older_than: body.older_than }
    }
}
