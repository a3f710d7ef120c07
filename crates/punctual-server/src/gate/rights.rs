//! What a route needs, and what a caller may do.

use std::sync::Arc;

use axum::http::Method;

use super::Refusal;
use crate::token::{Payloads, Role, Token};

/// What a request needs. Each right includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// To look.
    Read,
    /// To enqueue, reserve, settle and change jobs.
    Operate,
    /// To change settings, schedules, topics and tokens.
    Admin,
}

impl Right {
    /// Says that the whole store is concerned: a token for some queues does not suffice.
    pub const fn in_store(self) -> Needs {
        Needs(Need::Store(self))
    }

    /// Says that the handler calls [`Caller::may`] with each queue that it reads or changes. The layer then only checks
    /// the role.
    pub const fn by_queue(self) -> Needs {
        Needs(Need::Queues(self))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl From<Role> for Right {
    fn from(role: Role) -> Self {
        match role {
            Role::Read => Self::Read,
            Role::Operate => Self::Operate,
            Role::Admin => Self::Admin,
        }
    }
}

/// What a route needs. [`Right::in_store`] and [`Right::by_queue`] make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs(pub(super) Need);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    Store(Right),
    Queues(Right),
}

impl Needs {
    /// Nothing: everybody may use the route. For health, the login page and static files. The handler gets no
    /// [`Caller`].
    pub const PUBLIC: Self = Self(Need::Nothing);
    /// Whether a caller that may only look does not suffice.
    pub(crate) fn changes(self) -> bool {
        match self.0 {
            Need::Nothing => false,
            Need::Store(right) | Need::Queues(right) => Right::Read < right,
        }
    }

    /// Of a route that nobody listed.
    pub(super) const UNKNOWN: Self = Right::Admin.in_store();
}

/// The table of a router: what the route of a method and a path needs, and `None` for a route that it does not know.
///
/// HEAD is asked as GET.
pub type Rights = fn(&Method, &str) -> Option<Needs>;

/// The method by which a table is asked. A router answers HEAD as GET without its body.
pub(crate) fn asked_as(method: &Method) -> &Method {
    if method == Method::HEAD { &Method::GET } else { method }
}

/// A caller that is let in. It is an extension of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caller {
    /// The name, for people and for records of who did what: that of the token, or of the user that a proxy names.
    pub name: String,
    /// The id of its token, if it has one.
    pub token: Option<String>,
    /// The role.
    pub role: Role,
    /// The only queues that it may use; `None` for the whole store.
    pub queues: Option<Arc<[String]>>,
    /// Whether payloads, results and headers of jobs must be hidden from it.
    pub payloads_hidden: bool,
}

impl Caller {
    /// Makes a caller without a token, for the whole store.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self { name: name.into(), token: None, role, queues: None, payloads_hidden: false }
    }

    /// Checks that the caller has a right, in one queue or in the whole store (`None`).
    ///
    /// # Errors
    /// A refusal with status 403 if its role is too low, or if its token is for other queues.
    ///
    /// ```
    /// # use punctual_server::{gate::{Caller, Right}, token::Role};
    /// let caller = Caller::new("ana", Role::Operate);
    /// assert!(caller.may(Right::Read, None).is_ok());
    /// assert!(caller.may(Right::Admin, None).is_err());
    /// ```
    pub fn may(&self, right: Right, queue: Option<&str>) -> Result<(), Refusal> {
        self.has(right)?;
        match (&self.queues, queue) {
            (None, _) => Ok(()),
            (Some(own), Some(queue)) if own.iter().any(|its| its == queue) => Ok(()),
            (Some(_), Some(queue)) => Err(Refusal::forbidden(
                format!("the token is not for the queue {queue:?}"),
                "use a token for this queue, or one for the whole store",
            )),
            (Some(_), None) => Err(Refusal::forbidden(
                "the request is about the whole store, and the token is for some queues only",
                "use a token for the whole store, or a call that names one of these queues or a job by its address (/api/v1/jobs/ID)",
            )),
        }
    }

    /// Checks what a route needs.
    pub(crate) fn meets(&self, needs: Needs) -> Result<(), Refusal> {
        match needs.0 {
            Need::Nothing => Ok(()),
            Need::Store(right) => self.may(right, None),
            Need::Queues(right) => self.has(right),
        }
    }

    /// Checks the role alone.
    pub(crate) fn has(&self, right: Right) -> Result<(), Refusal> {
        if right <= self.role.into() {
            return Ok(());
        }
        let (role, right) = (self.role, right.name());
        Err(Refusal::forbidden(
            format!("the request needs the role {right}, and the token has the role {role}"),
            format!("use a token with the role {right}: punctual token new NAME --role {right}"),
        ))
    }
}

impl From<&Token> for Caller {
    fn from(token: &Token) -> Self {
        Self {
            name: token.name.clone(),
            token: Some(token.id.clone()),
            role: token.role,
            queues: token.queues.as_deref().map(Arc::from),
            payloads_hidden: token.payloads == Payloads::Hidden,
        }
    }
}
