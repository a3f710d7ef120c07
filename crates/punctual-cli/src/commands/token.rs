//! `punctual token …`: manages the tokens that a server asks for. `new` prints a token once; the store never has its secret.

use std::{io::Write as _, time::Duration};

use punctual::{ErrorKind, Timestamp, job::parse_duration};
use punctual_server::token::{self, Made, NewToken, Payloads, Role, Token as Known};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{Format, Table, clean, json},
    times::{relative, wall},
};

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
A server reads tokens from its store. While the store has none, the server answers only programs on its own machine.

Examples:
  punctual token new ana --role admin
  punctual token ls
  punctual token revoke 0f3c9a71")]
pub(crate) enum Token {
    /// Make a token and print it, once.
    New(New),
    /// List tokens, without their secrets.
    #[command(after_help = "\
Examples:
  punctual token ls
  punctual token ls -o json")]
    Ls,
    /// Revoke a token: servers refuse it within 1 s.
    #[command(after_help = "\
Examples:
  punctual token revoke 0f3c9a71
  punctual token revoke 0f3c9a71 -o json")]
    Revoke {
        /// Id of the token, as token ls prints it.
        id: String,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The token is printed to stdout, and everything else to stderr. The store keeps only a hash of it, so nothing can print it \
again.

With --sqs the access key for SDKs of AWS is printed instead, as two lines for a file of variables. Its secret follows from the \
hash in the store, so whoever can read the store can use this token.

Roles: read sees jobs and queues. operate also enqueues, runs and changes jobs. admin also changes settings, schedules \
and topics. With --queue a token is for these queues only, and not for requests about the whole store.

Examples:
  punctual token new ana --role admin > ana.token
  punctual token new 'on call' --role read --hide-payloads --expires-in 90d
  punctual token new mailer --role operate --queue mail --queue newsletter --sqs > aws.env")]
pub(crate) struct New {
    /// Name of the token, for people.
    name: String,
    /// What the token may do: read, operate or admin.
    #[arg(long, value_parser = role, value_name = "ROLE")]
    role: Role,
    /// Queue that the token is for; may be repeated (default: the whole store).
    #[arg(short, long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// Hide payloads, results and headers of jobs from the token.
    #[arg(long)]
    hide_payloads: bool,
    /// Time until the token expires, as 12h or 90d (default: never).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    expires_in: Option<Duration>,
    /// Make a token that signs requests of the SQS protocol, and print its access key.
    #[arg(long)]
    sqs: bool,
    /// Name of the person that makes the token (default: somebody).
    #[arg(
        long,
        env = "USER",
        default_value = "somebody",
        hide_default_value = true,
        hide_env_values = true,
        value_name = "NAME"
    )]
    by: String,
}

pub(super) fn role(text: &str) -> std::result::Result<Role, String> {
    let role = Role::ALL.into_iter().find(|role| role.name() == text);
    role.ok_or_else(|| "write read, operate or admin".to_owned())
}

impl Token {
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self, Self::Ls)
    }

    pub(crate) const fn makes_a_store(&self) -> bool {
        matches!(self, Self::New(_))
    }
}

pub(crate) async fn run(session: &mut Session, command: &Token) -> Result {
    match command {
        Token::New(args) => new(session, args).await,
        Token::Ls => ls(session).await,
        Token::Revoke { id } => revoke(session, id).await,
    }
}

/// A token as JSON.
#[derive(Serialize)]
struct View<'a> {
    id: &'a str,
    name: &'a str,
    role: Role,
    /// `None` for the whole store.
    queues: Option<&'a [String]>,
    payloads: Payloads,
    created_at_ms: u64,
    created_by: &'a str,
    expires_at_ms: Option<u64>,
    /// Whether it signs requests of the SQS protocol.
    sqs: bool,
}

impl<'a> From<&'a Known> for View<'a> {
    fn from(token: &'a Known) -> Self {
        Self {
            id: &token.id,
            name: &token.name,
            role: token.role,
            queues: token.queues.as_deref(),
            payloads: token.payloads,
            created_at_ms: token.created_at.as_ms(),
            created_by: &token.created_by,
            expires_at_ms: token.expires_at.map(Timestamp::as_ms),
            sqs: token.signs,
        }
    }
}

async fn new(session: &mut Session, args: &New) -> Result {
    if session.format == Format::Ids {
        return Err(Failure::invalid("token new does not print ids")
            .why("the token would be lost, because nothing can print it again")
            .hint("leave -o ids away, or use -o json, which has the id and the token"));
    }
    let new = NewToken {
        queues: (!args.queues.is_empty()).then(|| args.queues.clone()),
        payloads: if args.hide_payloads { Payloads::Hidden } else { Payloads::Shown },
        expires_in: args.expires_in,
        signs: args.sqs,
        created_by: args.by.clone(),
        ..NewToken::new(&args.name, args.role)
    };
    let made = token::make(&session.client, &new, token::random()?).await?;
    if let Err(failure) = print(session, &made) {
        token::revoke(&session.client, &made.token.id).await?;
        let why = failure.if_unread(|| Failure::failed("the reader of stdout went away"));
        return Err(Failure::failed("the token could not be printed, so it was revoked").why(why.message()));
    }
    let Known { id, role, .. } = &made.token;
    let queues = scope(&made.token);
    let expires = match made.token.expires_at {
        None => "never expires".to_owned(),
        Some(at) => format!("expires {}", relative(at, made.token.created_at)),
    };
    let use_it = if made.token.signs {
        "give it to SDKs of AWS as access key, with the address of punctual serve --sqs as endpoint URL"
    } else {
        "send it as Authorization: Bearer TOKEN"
    };
    session.say(&format!(
        "made token {id}  {}  role {role}  {}  {expires}\nkeep it secret: it is printed only now\n{use_it}; punctual token \
         revoke {id}    revokes it",
        clean(&made.token.name),
        clean(&queues)
    ));
    Ok(())
}

fn print(session: &mut Session, made: &Made) -> Result {
    /// A new token as JSON.
    #[derive(Serialize)]
    struct Shown<'a> {
        token: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        secret_access_key: Option<String>,
        #[serde(flatten)]
        view: View<'a>,
    }
    let text = made.secret.expose();
    if session.format.is_json() {
        let secret_access_key = made.token.signs.then(|| made.secret.access_key());
        json(&mut session.out, &Shown { token: text, secret_access_key, view: View::from(&made.token) })?;
    } else if made.token.signs {
        writeln!(session.out, "AWS_ACCESS_KEY_ID={}", made.token.id)?;
        writeln!(session.out, "AWS_SECRET_ACCESS_KEY={}", made.secret.access_key())?;
    } else {
        writeln!(session.out, "{text}")?;
    }
    Ok(session.out.flush()?)
}

/// The queues of a token, in words.
fn scope(token: &Known) -> String {
    match &token.queues {
        None => "all queues".to_owned(),
        Some(queues) => format!("queues {}", queues.join(" ")),
    }
}

async fn ls(session: &mut Session) -> Result {
    let token::Tokens { tokens, unreadable, .. } = token::list(&session.client).await?;
    for id in unreadable {
        session
            .say(&format!("token {} cannot be read and is refused: revoke it and make another", clean(&id)));
    }
    let now = session.now().await?;
    let (zone, out) = (&session.zone, &mut session.out);
    match session.format {
        Format::Json => json(out, &tokens.iter().map(View::from).collect::<Vec<_>>())?,
        Format::Ndjson => tokens.iter().try_for_each(|token| json(out, &View::from(token)))?,
        Format::Ids => tokens.iter().try_for_each(|token| writeln!(out, "{}", clean(&token.id)))?,
        Format::Human | Format::Wide => {
            let mut table =
                Table::new(["ID", "NAME", "ROLE", "QUEUES", "PAYLOADS", "CREATED", "BY", "EXPIRES"]);
            for token in &tokens {
                let payloads = match token.payloads {
                    Payloads::Shown => "shown",
                    Payloads::Hidden => "hidden",
                };
                let expires = match token.expires_at {
                    None => "never".to_owned(),
                    Some(at) if at <= now => "expired".to_owned(),
                    Some(at) => relative(at, now),
                };
                table.row([
                    token.id.clone(),
                    token.name.clone(),
                    token.role.to_string(),
                    token.queues.as_ref().map_or_else(|| "all".to_owned(), |queues| queues.join(" ")),
                    payloads.to_owned(),
                    wall(token.created_at, now, zone),
                    token.created_by.clone(),
                    expires,
                ]);
            }
            table.print(out)?;
        }
    }
    Ok(())
}

/// A revoked token, as JSON.
#[derive(Serialize)]
struct Revoked<'a> {
    id: &'a str,
    revoked: bool,
}

async fn revoke(session: &mut Session, id: &str) -> Result {
    let gone = token::revoke(&session.client, id).await;
    match gone {
        Ok(true) => {}
        Ok(false) => {
            return Err(Failure::not_found(format!("there is no token {id}"))
                .hint("punctual token ls    lists the ids of all tokens"));
        }
        Err(error) if error.kind() == ErrorKind::Invalid && id.starts_with("pt_") => {
            return Err(Failure::invalid("token revoke takes the id of a token, not the token")
                .why("what is on a command line can be read by other programs")
                .hint("the id is the part between pt_ and the next _"));
        }
        Err(error) => return Err(error.into()),
    }
    match session.format {
        Format::Json | Format::Ndjson => json(&mut session.out, &Revoked { id, revoked: true })?,
        Format::Ids => writeln!(session.out, "{id}")?,
        Format::Human | Format::Wide => writeln!(session.out, "revoked {id}")?,
    }
    let left = token::list(&session.client).await?;
    if left.tokens.is_empty() && left.unreadable.is_empty() {
        session.say("this was the last token: servers on this store now answer programs on their own machine without one");
    }
    Ok(())
}
