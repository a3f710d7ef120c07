//! The server of the old queue: runs scripts in one round trip, and translates its errors.

use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, RedisError, Script, Value, aio::MultiplexedConnection};

use super::{
    BATCH_BYTES_MAX, BATCH_ENTRIES_MAX,
    keys::Source,
    layout::{Body, End},
};
use crate::errors::{Failure, Result};

/// How long the server may take for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Schemes that the client knows.
const SCHEMES: [&str; 3] = ["redis://", "redis+unix://", "unix://"];
/// The largest payload that becomes a job, in bytes.
const PAYLOAD_BYTES_MAX: usize = punctual::limits::PAYLOAD_BYTES_MAX;

/// A connection to the server, with the scripts of an import.
pub(super) struct Server {
    connection: MultiplexedConnection,
    scripts: Scripts,
}

/// In `lua/`, each with what it does at its head.
struct Scripts {
    begin: Script,
    claim: Script,
    finish: Script,
    look: Script,
    peek: Script,
    remove: Script,
    trim: Script,
}

/// A call of a script.
pub(super) struct Call<'a> {
    script: &'a Script,
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

impl<'a> Call<'a> {
    /// Makes a call of the import `owner`; each script gets the owner and the state.
    fn of(script: &'a Script, source: &Source, owner: &str) -> Self {
        Self { script, keys: vec![source.state()], args: vec![owner.as_bytes().to_vec()] }
    }

    fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.args.push(arg.as_ref().to_vec());
        self
    }

    fn number(self, n: usize) -> Self {
        self.arg(n.to_string())
    }

    fn key(mut self, key: &str) -> Self {
        self.keys.push(key.to_owned());
        self
    }
}

impl Server {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        if !SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(Failure::invalid("import cannot use the address in --from")
                .why("import reads from one Redis server without TLS, at redis:// or redis+unix://")
                .hint("name the primary server; if it requires TLS, use a tunnel"));
        }
        let client = redis::Client::open(url).map_err(|e| {
            // The address may hold a password, so it is not shown.
            Failure::invalid("could not read the address of --from").why(e.category())
        })?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_MAX));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        Ok(Self { connection: connection.map_err(|e| told(&e))?, scripts: Scripts::new() })
    }

    /// What it answers to a command.
    pub(super) async fn say<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T> {
        command.query_async(&mut self.connection.clone()).await.map_err(|e| told(&e))
    }

    pub(super) async fn exists(&self, key: &str) -> Result<bool> {
        self.say(redis::cmd("EXISTS").arg(key)).await
    }

    /// What it answers to scripts, one after the other in one round trip. They are loaded with it: then none can be missing.
    pub(super) async fn run(&self, calls: &[Call<'_>]) -> Result<Vec<Value>> {
        let mut pipe = redis::pipe();
        for call in calls {
            let mut invocation = call.script.prepare_invoke();
            for key in &call.keys {
                invocation.key(key);
            }
            for arg in &call.args {
                invocation.arg(arg);
            }
            pipe.load_script(call.script).ignore().invoke_script(&invocation);
        }
        // A refusal is the answer of its own call, so that its message is kept.
        let answers: Vec<Value> =
            pipe.ignore_errors().query_async(&mut self.connection.clone()).await.map_err(|e| told(&e))?;
        answers
            .into_iter()
            .map(|answer| match answer {
                Value::ServerError(error) => Err(told(&error.into())),
                answer => Ok(answer),
            })
            .collect()
    }

    // ── the scripts ──

    /// Makes `owner` the importer of a source. Returns the run, which identifies entries of this import.
    pub(super) async fn begin(&self, source: &Source, owner: &str, how: &str) -> Result<String> {
        let run = format!("{:016x}", fastrand::u64(..));
        let on_its_way = if source.is_list { source.aside() } else { source.open() };
        let call = Call::of(&self.scripts.begin, source, owner).key(&on_its_way).arg(how).arg(run);
        let answer: (String, String) = read(only(self.run(&[call]).await?)?)?;
        match answer {
            (word, run) if word == "begun" => Ok(run),
            (_, other) => {
                let text =
                    format!("an earlier import of {:?} was stopped, and had other options", source.key);
                Err(Failure::conflict(text)
                    .why(format!("earlier import: {other}"))
                    .why(format!("this import: {how}"))
                    .hint(format!(
                        "finish the earlier import with its own options; or delete the key {:?}, after which up to \
                         {BATCH_ENTRIES_MAX} entries may become jobs twice",
                        source.state()
                    )))
            }
        }
    }

    pub(super) fn look(
        &self,
        source: &Source,
        owner: &str,
        body: &Body,
        skip: usize,
        most: usize,
    ) -> Call<'_> {
        let call = Call::of(&self.scripts.look, source, owner).key(&source.key).key(&source.open());
        let call = if let Body::Hash(hash) = body { call.key(hash) } else { call };
        let call = call.number(skip).number(most).number(BATCH_BYTES_MAX).number(PAYLOAD_BYTES_MAX);
        place(call, body)
    }

    /// `others` may share payloads with the source; `entries`: member, score and the payload's SHA-1 of each, as look answered
    /// them.
    pub(super) fn remove<'a, 'b>(
        &'a self,
        (source, others): (&Source, &[&str]),
        owner: &str,
        body: &Body,
        round: u64,
        entries: impl Iterator<Item = [&'b [u8]; 3]>,
    ) -> Call<'a> {
        let call = Call::of(&self.scripts.remove, source, owner).key(&source.key).key(&source.open());
        let call = if let Body::Hash(hash) = body { call.key(hash) } else { call };
        let call = others.iter().copied().fold(call, Call::key);
        let call = place(call.arg(round.to_string()), body);
        entries.flatten().fold(call, Call::arg)
    }

    pub(super) fn claim(&self, source: &Source, owner: &str, next: End, backup: Option<&str>) -> Call<'_> {
        let call = Call::of(&self.scripts.claim, source, owner).key(&source.aside()).key(&source.key);
        let call = if let Some(backup) = backup { call.key(backup) } else { call };
        call.arg(next.name()).number(BATCH_ENTRIES_MAX).number(BATCH_BYTES_MAX)
    }

    /// Looks into `list`: the source itself, or what was moved aside.
    pub(super) fn peek(
        &self,
        source: &Source,
        list: &str,
        owner: &str,
        next: End,
        context: Option<&str>,
        most: usize,
    ) -> Call<'_> {
        let call = Call::of(&self.scripts.peek, source, owner).key(list);
        let call = if let Some(context) = context { call.key(context) } else { call };
        call.arg(next.name()).number(most).number(BATCH_BYTES_MAX).number(PAYLOAD_BYTES_MAX)
    }

    /// `refused`: places among the `n`, from 0.
    pub(super) fn trim(
        &self,
        source: &Source,
        owner: &str,
        next: End,
        has_context: bool,
        taken: u64,
        (n, refused): (usize, &[usize]),
    ) -> Call<'_> {
        let call = Call::of(&self.scripts.trim, source, owner).key(&source.aside()).key(&source.refused());
        let call = if has_context { call.key(&source.ids()) } else { call };
        let call = call.arg(taken.to_string()).arg(next.name()).number(n);
        refused.iter().fold(call, |call, at| call.number(*at))
    }

    /// `list`: whether it is one, and its hash of payloads and its backup, where it has these.
    pub(super) fn finish(
        &self,
        source: &Source,
        owner: &str,
        (context, backup): (Option<&str>, Option<&str>),
    ) -> Call<'_> {
        let mut call = Call::of(&self.scripts.finish, source, owner).number(BATCH_ENTRIES_MAX);
        if source.is_list {
            call = call.key(&source.aside());
        }
        if let Some(context) = context {
            call = call.key(&source.key).key(&source.ids()).key(context);
            if let Some(backup) = backup {
                call = call.key(backup);
            }
        }
        call
    }
}

impl Scripts {
    fn new() -> Self {
        Self {
            begin: Script::new(include_str!("lua/begin.lua")),
            claim: Script::new(include_str!("lua/claim.lua")),
            finish: Script::new(include_str!("lua/finish.lua")),
            look: Script::new(include_str!("lua/look.lua")),
            peek: Script::new(include_str!("lua/peek.lua")),
            remove: Script::new(include_str!("lua/remove.lua")),
            trim: Script::new(include_str!("lua/trim.lua")),
        }
    }
}

/// Where payloads are, for a script.
fn place<'a>(call: Call<'a>, body: &Body) -> Call<'a> {
    match body {
        Body::Member => call.arg("member").arg("").arg(""),
        Body::Key(before, behind) => call.arg("key").arg(before).arg(behind),
        Body::Hash(_) => call.arg("hash").arg("").arg(""),
    }
}

/// The answer of the last call, where it matters alone.
pub(super) fn only(answers: Vec<Value>) -> Result<Value> {
    answers.into_iter().next_back().ok_or_else(odd)
}

/// An answer as what it is meant to be.
pub(super) fn read<T: FromRedisValue>(value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|_| odd())
}

/// The server answered what no script of ours answers.
pub(super) fn odd() -> Failure {
    Failure::failed("the server of --from returned an unexpected answer")
}

/// A refusal in our words.
fn told(error: &RedisError) -> Failure {
    let again = "run the same command again; it continues where it stopped";
    // Servers before 7.2 have no code for what a script may not do.
    let is_forbidden = error.detail().is_some_and(|text| text.contains("can't run this command"));
    match (error.code(), error.kind()) {
        (Some("ERR"), _) if is_forbidden => forbidden(error),
        (Some("TAKENOVER"), _) => Failure::conflict(
            "another import of this key was started, or the state of this import was deleted",
        )
        .why("only the import that was started last can continue")
        .hint(again),
        (Some("WRONGTYPE"), _) => {
            Failure::invalid("a key of --from does not have the type that the layout needs (WRONGTYPE)")
                .why(error.to_string())
                .hint("check the type of the named keys with the Redis command TYPE")
        }
        (Some("NOPERM" | "NOAUTH" | "WRONGPASS"), _) | (_, ErrorKind::AuthenticationFailed) => {
            forbidden(error)
        }
        (Some("READONLY"), _) => Failure::store_unavailable("the server of --from is a replica")
            .why("import removes the entries that it imported, and a replica does not allow that")
            .hint("name the primary server in --from"),
        (Some("MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN"), _) => {
            Failure::unsupported("the server of --from is part of a cluster, which import does not support")
                .why(error.to_string())
        }
        (_, ErrorKind::Io) => Failure::store_unavailable("could not reach the server of --from")
            .why(error.to_string())
            .hint(again),
        _ => Failure::failed("the server of --from refused a command").why(error.to_string()).hint(again),
    }
}

fn forbidden(error: &RedisError) -> Failure {
    Failure::unsupported("the server of --from denied access")
        .why(error.to_string())
        .hint("check the user, the password and the permissions of the user")
}
