//! `settings.md`: settings of queues, options of jobs and workers, the command's options and variables, its file, and addresses.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use punctual::{
    Backoff, Client, JobOptions, Priority,
    limits::{
        BACKOFF_MAX_MS, BATCH_MAX, CONCURRENCY_MAX, GROUP_LIMITS_MAX, GROUP_WEIGHT_MAX, HEADERS_BYTES_MAX,
        IDEMPOTENCY_KEY_BYTES_MAX, LEASE_DEFAULT, LEASE_MAX, LEASE_MIN, LOCK_LEASE_DEFAULT,
        MAX_ATTEMPTS_DEFAULT, MAX_ATTEMPTS_MAX, NAME_BYTES_MAX, NOTES_BYTES_MAX, PAYLOAD_BYTES_MAX,
        QUEUE_CONCURRENCY_MAX, RATE_MAX, RATE_PERIOD_MAX, RATE_PERIOD_MIN, RESULT_BYTES_MAX, TAGS_MAX,
        TIMEOUT_DEFAULT, TIMEOUT_MAX,
    },
    reference::{
        CACHE_MIB_MAX, Defaults, GRACE_MAX, Having, NODES_MAX, OPTIONS, PREFIX_BYTES_MAX, REPLICAS_MAX,
        SENTINEL_PORT, SLOTS_MAX, SQLITE_OPTIONS, WEIGHT_MAX, defaults,
    },
    store::{GroupLimits, Keep, QueueSettings, Rate, sqlite::SqliteOptions},
    worker::UnknownKinds,
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Visitor, value::Error},
    forward_to_deserialize_any,
};

use super::{check, code, codes, number, row, size, table, time};
use crate::{
    args::STORE_DEFAULT,
    commands::forward,
    config::{Config, Forward},
    help,
};

/// Every setting of a queue by name, and the values that it takes.
const KEYS: [(&str, &str); 26] = QueueSettings::KEYS;
/// What a cell without a value has.
const NONE: &str = "none";

/// Asks a type for the names of its fields: the only thing that it does when it is deserialised.
struct Names(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Names {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.0 = fields;
        Err(Error::custom("only the names are wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("not a struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The names of the fields of a type, as they are stored.
fn fields<T: Deserialize<'static>>() -> BTreeSet<&'static str> {
    let mut names = Names(&[]);
    let _ = T::deserialize(&mut names);
    names.0.iter().copied().collect()
}

/// `1 to 10,000`.
fn range(least: u64, most: u64) -> String {
    format!("{} to {}", number(least), number(most))
}

/// `1 s to 24 h`.
fn times(least: Duration, most: Duration) -> String {
    format!("{} to {}", time(least), time(most))
}

fn backoff_default() -> String {
    // As it is written on the command line, so its parser is asked.
    let text = "exp 5s..6h";
    assert_eq!(text.parse::<Backoff>().ok(), Some(Backoff::default()), "the default backoff is not {text}");
    code(text)
}

/// The options that a job, its type or its queue can choose: name, option of `push`, values, default, meaning.
fn job_options() -> Vec<[String; 5]> {
    let backoff = format!(
        "`exp`, `linear` or `fixed`, with a first and a longest pause, at most {}",
        time(Duration::from_millis(BACKOFF_MAX_MS))
    );
    let options = [
        (
            "priority",
            "--priority",
            codes(Priority::ALL),
            Priority::default().to_string(),
            "Higher priorities start first.",
        ),
        (
            "max_attempts",
            "--max-attempts",
            range(1, MAX_ATTEMPTS_MAX.into()),
            MAX_ATTEMPTS_DEFAULT.to_string(),
            "Number of attempts, after which the job is dead. With 1, it is never retried.",
        ),
        (
            "backoff",
            "--backoff",
            backoff,
            backoff_default(),
            "Pause between attempts. `exp` and `linear` have jitter: each pause is random, between half and all of its length.",
        ),
        (
            "timeout",
            "--timeout",
            times(Duration::from_millis(1), TIMEOUT_MAX),
            time(TIMEOUT_DEFAULT),
            "Time limit of one run.",
        ),
        (
            "lease",
            "--lease",
            times(LEASE_MIN, LEASE_MAX),
            format!("the worker's, the queue's, else {}", time(LEASE_DEFAULT)),
            "If the worker dies, the job runs again after this time.",
        ),
    ];
    let stored: BTreeSet<&str> = options.iter().map(|(name, ..)| *name).collect();
    let fields: BTreeSet<&str> =
        fields::<JobOptions>().into_iter().map(|name| name.trim_end_matches("_ms")).collect();
    assert_eq!(stored, fields, "JobOptions has other fields than the page");
    options
        .map(|(name, option, values, default, meaning)| {
            [code(name), code(option), values, default, meaning.to_owned()]
        })
        .into()
}

/// The values, the default and the meaning of a key of `queue set`.
fn queue_key(key: &str, takes: &str) -> (String, String, &'static str) {
    let QueueSettings { done, dead, cancelled, .. } = QueueSettings::default();
    let kept = |keep: Keep| match key.rsplit('.').next() {
        Some("age") => (
            takes.to_owned(),
            time(Duration::from_millis(keep.age_ms)),
            "Age since the end up to which ended jobs are kept.",
        ),
        Some("count") => (takes.to_owned(), number(keep.count), "Number of ended jobs that are kept."),
        _ => (takes.to_owned(), size(keep.bytes), "Size of their payloads and results."),
    };
    let none = |values: String, meaning| (values, NONE.to_owned(), meaning);
    let rate = || {
        format!(
            "starts per period as `100/1m`, with `burst 10` for starts at once; {} starts, {}",
            range(1, RATE_MAX.into()),
            times(RATE_PERIOD_MIN, RATE_PERIOD_MAX)
        )
    };
    let job = || {
        let name = key.trim_start_matches("defaults.");
        let row = job_options().into_iter().find(|row| row[0] == code(name));
        row.map_or_else(|| panic!("{key} is no option of a job"), |row| row[2].clone())
    };
    match key {
        "order" => (
            takes.to_owned(),
            text(&QueueSettings::default().order),
            "Which jobs of one priority start first: those due earlier, or later.",
        ),
        "placement" => (
            takes.to_owned(),
            text(&QueueSettings::default().placement),
            "Where the jobs are in a store on Redis: in all shards, or in one of them.",
        ),
        "max_jobs" => none(
            "a number".to_owned(),
            "Most waiting and running jobs. Further jobs are refused (`store_full`).",
        ),
        "max_bytes" => {
            none("a size, such as `64MiB`".to_owned(), "Most payload bytes of waiting and running jobs.")
        }
        "concurrency" => {
            none(range(1, QUEUE_CONCURRENCY_MAX.into()), "Jobs that run at once, on all workers together.")
        }
        "rate" => none(rate(), "How often jobs start. Without `burst`, starts are evenly spread."),
        "group.weight" => (
            range(1, GROUP_WEIGHT_MAX.into()),
            "1".to_owned(),
            "Share of each group next to other groups with due jobs.",
        ),
        "group.concurrency" => none(range(1, CONCURRENCY_MAX.into()), "Jobs of each group that run at once."),
        "group.rate" => none(rate(), "How often jobs of each group start."),
        _ if let Some(limit) = key.strip_prefix("groups.NAME.") => {
            let of_all = format!("group.{limit}");
            (queue_key(&of_all, takes).0, code(of_all), "The same for the group NAME.")
        }
        _ if key.starts_with("retention.done.") => kept(done),
        _ if key.starts_with("retention.dead.") => kept(dead),
        _ if key.starts_with("retention.cancelled.") => kept(cancelled),
        "defaults.lease" => {
            none(job(), "Value for jobs that have none of their own, if their worker sets none.")
        }
        _ if key.starts_with("defaults.") => none(job(), "Value for jobs that have none of their own."),
        _ => panic!("the page has no text for the key {key}"),
    }
}

/// A word as it is stored.
fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(code)).unwrap_or_default()
}

/// The name of a key's field in Rust and JSON.
fn field_of(key: &str) -> String {
    let name = key.trim_start_matches("retention.");
    match name.rsplit_once('.') {
        Some((_, bound @ ("age" | "timeout" | "lease"))) => name.replace(bound, &format!("{bound}_ms")),
        _ => name.replace(".NAME.", "[NAME]."),
    }
}

fn queue_settings() -> Vec<[String; 5]> {
    let mut covered: BTreeSet<&str> =
        KEYS.iter().filter_map(|(key, _)| key.trim_start_matches("retention.").split('.').next()).collect();
    // `queue pause` sets it.
    covered.insert("paused");
    assert_eq!(covered, fields::<QueueSettings>(), "QueueSettings has other fields than `queue set`");
    let has = |names: &BTreeSet<&str>, stem: &str| {
        names
            .iter()
            .all(|name| KEYS.iter().any(|(key, _)| *key == format!("{stem}{}", name.trim_end_matches("_ms"))))
    };
    assert!(has(&fields::<GroupLimits>(), "group.") && has(&fields::<GroupLimits>(), "groups.NAME."));
    assert!(has(&fields::<Keep>(), "retention.done.") && has(&fields::<JobOptions>(), "defaults."));
    assert_eq!(fields::<Rate>(), BTreeSet::from(["max", "period_ms", "burst"]));
    let settings = KEYS.map(|(key, takes)| {
        let (values, default, meaning) = queue_key(key, takes);
        [code(key), code(field_of(key)), values, default, meaning.to_owned()]
    });
    settings.into()
}

/// The options of a worker in a program: method, values, default, meaning.
fn worker_options() -> Vec<[String; 4]> {
    let Defaults { slots, lease, shutdown_grace, cancel_grace, timeout_grace, retry_after_max, .. } =
        defaults();
    let Defaults { serve_topics, continue_trace, register, .. } = defaults();
    let grace = || format!("at most {}", time(GRACE_MAX));
    let worker = |name: &str, values: String, default: String, meaning: &str| {
        [code(name), values, default, meaning.to_owned()]
    };
    let or = |value: Option<Duration>, other: String| value.map_or(other, time);
    vec![
        worker("slots", range(1, SLOTS_MAX as u64), slots.to_string(), "Jobs that run at once."),
        worker(
            "queue_slots",
            range(1, SLOTS_MAX as u64),
            "`slots`".to_owned(),
            "Jobs of one queue that run at once.",
        ),
        worker(
            "queue",
            "a name".to_owned(),
            "the queues of the handled types".to_owned(),
            "Queue to serve, after those before it.",
        ),
        worker("weighted", range(1, WEIGHT_MAX.into()), NONE.to_owned(), "Queues to serve, with weights."),
        worker(
            "lease",
            times(LEASE_MIN, LEASE_MAX),
            or(lease, format!("the queue's, else {}", time(LEASE_DEFAULT))),
            "Lease of jobs that have none of their own.",
        ),
        worker(
            "shutdown_grace",
            grace(),
            time(shutdown_grace),
            "Time for handlers to end after shutdown began.",
        ),
        worker(
            "cancel_grace",
            grace(),
            time(cancel_grace),
            "Time that a run can go on after a cancel or a lost lease.",
        ),
        worker("timeout_grace", grace(), time(timeout_grace), "Time that a run can go on after its timeout."),
        worker(
            "retry_after_max",
            "a time".to_owned(),
            or(retry_after_max, "no limit".to_owned()),
            "Longest pause that a run can request.",
        ),
        worker(
            "unknown_kinds",
            "`Hold`, `Dead`, `Retry`".to_owned(),
            code(format!("{:?}", UnknownKinds::default())),
            "What happens to jobs without a handler.",
        ),
        worker(
            "serve_topics",
            "`true`, `false`".to_owned(),
            code(serve_topics),
            "Whether the worker also distributes publications.",
        ),
        worker(
            "continue_trace",
            "`true`, `false`".to_owned(),
            code(continue_trace),
            "Whether the first run of a job continues the trace of its producer (feature `otel`).",
        ),
        worker(
            "register",
            "`true`, `false`".to_owned(),
            code(register),
            "Whether the worker appears in `punctual worker ls`, and takes orders from there.",
        ),
        worker(
            "health_file",
            "a path".to_owned(),
            NONE.to_owned(),
            "File that is rewritten while the worker is alive.",
        ),
        worker("health_addr", "an address".to_owned(), NONE.to_owned(), "Address for HTTP health checks."),
        worker("name", "a text".to_owned(), "`host/pid`".to_owned(), "Name of the worker, shown to people."),
    ]
}

/// The options of a command: those of all commands for `punctual`.
fn flags(path: &str) -> Vec<[String; 3]> {
    let found = help::commands().into_iter().find(|(words, _)| words.join(" ") == path);
    let (_, command) = found.unwrap_or_else(|| panic!("there is no command {path}"));
    let own = |arg: &&clap::Arg| {
        !arg.is_hide_set()
            && !matches!(arg.get_id().as_str(), "help" | "version")
            && (path == "punctual" || !arg.is_global_set())
    };
    let flags = command.get_arguments().filter(own).map(|arg| {
        let long = arg.get_long().map(|long| format!("--{long}"));
        let takes = arg.get_action().takes_values() && long.is_some();
        let value =
            arg.get_value_names().filter(|_| takes).and_then(|names| names.first()).map(ToString::to_string);
        let short = arg.get_short().map(|short| format!("-{short}"));
        let names: Vec<String> = short.into_iter().chain(long.clone()).collect();
        let name = if names.is_empty() { arg.get_id().to_string().to_uppercase() } else { names.join(", ") };
        let name = value.map_or(name.clone(), |value| format!("{name} {value}"));
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (meaning, default) = match help.rsplit_once(" (default: ") {
            Some((meaning, default)) => (meaning.to_owned(), default.trim_end_matches(['.', ')']).to_owned()),
            None if arg.is_required_set() => (help, "required".to_owned()),
            None if !takes && long.is_some() => (help, "off".to_owned()),
            None => (help, NONE.to_owned()),
        };
        [code(name), default, meaning]
    });
    flags.collect()
}

/// Variables that no option names, and what they do.
const VARIABLES: [(&str, &str); 18] = [
    ("RUST_LOG", "Levels and modules of log lines, such as `warn,punctual=debug`. It overrides `-v`."),
    ("NO_COLOR", "If it is not empty, `--color auto` uses no colours."),
    (
        "TZ",
        "Time zone of times without one, such as `18:00` (default: that of the system). One that does not exist is an error.",
    ),
    ("TERM", "If it is `dumb`, `--color auto` uses no colours."),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "Address of a collector ([Traces](../operating/traces.md))."),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The same for traces only, with its path."),
    ("OTEL_SERVICE_NAME", "Name of the program in traces (default: `punctual`)."),
    ("OTEL_RESOURCE_ATTRIBUTES", "Attributes of the program in traces, such as `service.name=mailer`."),
    ("OTEL_TRACES_EXPORTER", "If it is `none`, there are no traces."),
    ("OTEL_SDK_DISABLED", "If it is `true`, there are no traces."),
    (
        "TRACEPARENT",
        "Trace that `push` and `topic` are part of. `work` sets it for commands, if traces are on.",
    ),
    ("TRACESTATE", "The same: what tracing systems add to it."),
    ("XDG_CONFIG_HOME", "Folder of `punctual/config.toml` (default: `~/.config`)."),
    ("HOME", "Folder of `.config`, if `XDG_CONFIG_HOME` is not set."),
    ("SQLITE_TMPDIR", "Folder for temporary files of `compact`."),
    ("TMPDIR", "The same, if `SQLITE_TMPDIR` is not set."),
    ("HOSTNAME", "Name of the host in names of workers, if the system reports none."),
    ("COMPUTERNAME", "The same on Windows."),
];

/// Variables that commands get.
const GIVEN: [(&str, &str, &str); 13] = [
    ("PUNCTUAL_JOB_ID", "work", "Id of the job."),
    ("PUNCTUAL_KIND", "work", "Kind of the job."),
    ("PUNCTUAL_QUEUE", "work", "Queue of the job."),
    ("PUNCTUAL_GROUP", "work", "Group of the job, if it has one."),
    ("PUNCTUAL_ATTEMPT", "work", "Number of this attempt, from 1."),
    ("PUNCTUAL_MAX_ATTEMPTS", "work", "Number of attempts, after which the job is dead."),
    ("PUNCTUAL_FENCE", "work", "Number that rises with each run of the job."),
    ("PUNCTUAL_RUN_AT_MS", "work", "Due time, in Unix milliseconds."),
    ("PUNCTUAL_CONTENT_TYPE", "work", "Content type of the payload."),
    ("PUNCTUAL_TAGS", "work", "Tags, as a JSON list."),
    ("PUNCTUAL_HEADERS", "work", "Headers, as a JSON object."),
    ("PUNCTUAL_LOCK", "lock run", "Name of the lock."),
    ("PUNCTUAL_FENCE", "lock run", "Number that rises each time that the lock is acquired."),
];

/// The variables that options name, with those options.
fn variables_of_options() -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for (path, command) in help::commands() {
        for arg in command.get_arguments().filter(|arg| path.len() == 1 || !arg.is_global_set()) {
            let (Some(env), Some(long)) = (arg.get_env(), arg.get_long()) else { continue };
            let (env, option) = (env.display().to_string(), code(format!("--{long}")));
            let option =
                if path.len() == 1 { option } else { format!("{option} of {}", code(path[1..].join(" "))) };
            match found.iter_mut().find(|(name, _)| *name == env) {
                Some((_, options)) => *options += &format!(", {option}"),
                None => found.push((env, option)),
            }
        }
    }
    found
}

/// The texts of the library's and the command's source files that follow `before` and precede a quote.
fn named_in_sources(before: &[&str]) -> BTreeSet<String> {
    fn visit(folder: &Path, before: &[&str], found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder of sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                visit(&path, before, found);
            } else if !path.components().any(|part| part.as_os_str() == "reference") {
                let text = fs::read_to_string(&path).expect("a source");
                let after = before.iter().flat_map(|before| text.split(*before).skip(1));
                found.extend(after.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
    let mut found = BTreeSet::new();
    for folder in ["src", "../punctual/src"] {
        visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), before, &mut found);
    }
    found
}

/// The keys of the configuration file: key, values, default, meaning.
fn configuration() -> (Vec<[String; 4]>, Vec<[String; 4]>) {
    let whole = [
        (
            "store",
            "an address",
            code(STORE_DEFAULT),
            "The store, if neither `--store` nor `PUNCTUAL_STORE` names one.",
        ),
        ("tz", "as `--tz`", code("local"), "Time zone of times that are read or printed."),
        ("color", "as `--color`", code("auto"), "Colours of states and errors."),
        ("log_format", "as `--log-format`", code("text"), "Format of log lines."),
        (
            "serve",
            "a table",
            NONE.to_owned(),
            "Options of `punctual serve`, such as `tls_cert` for `--tls-cert`.",
        ),
        ("work", "a table", NONE.to_owned(), "Options of `punctual work`, such as `slots = 20`."),
        (
            "telemetry",
            "a table",
            NONE.to_owned(),
            "`otlp_endpoint` and `continue_trace` ([Traces](../operating/traces.md)).",
        ),
        (
            "forward",
            "`[[forward]]` tables",
            NONE.to_owned(),
            "Queues whose jobs `punctual forward` sends. See below.",
        ),
    ];
    let forward = [
        ("from", "a name", "required", "Queue whose jobs are sent."),
        ("to", "an address", "required, or `to_file`", "Address of the receiver."),
        ("to_file", "a path", NONE, "File with that address, which can contain a password."),
        ("slots", "a number", "@slots", "Jobs that are sent at once."),
        ("secret_file", "a path", NONE, "File with the secret that signs webhooks."),
        ("secret_env", "a name", NONE, "Environment variable with that secret."),
        ("headers", "a table of texts", NONE, "Headers of each request to a webhook."),
        ("ca_file", "a path", NONE, "File with certificate authorities (PEM) to trust."),
        ("cert_file", "a path", NONE, "File with the client certificate (PEM)."),
        ("key_file", "a path", NONE, "File with the key of that certificate (PEM)."),
        (
            "allow_private",
            "`true`, `false`",
            "`false`",
            "Allows webhooks in a private network, on this machine, or without TLS.",
        ),
    ];
    assert_eq!(whole.iter().map(|(key, ..)| *key).collect::<BTreeSet<_>>(), fields::<Config>());
    assert_eq!(forward.iter().map(|(key, ..)| *key).collect::<BTreeSet<_>>(), fields::<Forward>());
    let whole = whole
        .map(|(key, values, default, meaning)| [code(key), values.to_owned(), default, meaning.to_owned()]);
    let forward = forward.map(|(key, values, default, meaning)| {
        [
            code(key),
            values.to_owned(),
            default.replace("@slots", &forward::SLOTS.to_string()),
            meaning.to_owned(),
        ]
    });
    (whole.into(), forward.into())
}

/// The options of an address of a file.
fn sqlite_options() -> Vec<[String; 4]> {
    let usual = SqliteOptions::default();
    let default = |name: &str| {
        let is_usual = |set: fn(&mut SqliteOptions)| {
            let mut options = SqliteOptions::default();
            set(&mut options);
            (options.durability, options.create, options.read_only)
                == (usual.durability, usual.create, usual.read_only)
        };
        let found = SQLITE_OPTIONS.iter().find(|option| option.name == name && is_usual(option.set));
        found.map_or_else(|| panic!("{name} has no default"), |option| code(option.value))
    };
    let values = |name: &str| {
        codes(SQLITE_OPTIONS.iter().filter(|option| option.name == name).map(|option| option.value))
    };
    let names: BTreeSet<&str> = SQLITE_OPTIONS.iter().map(|option| option.name).collect();
    assert_eq!(names, BTreeSet::from(["durability", "mode"]), "an option of sqlite: is not on the page");
    vec![
        [
            code("durability"),
            values("durability"),
            default("durability"),
            "What an accepted job survives: a power cut (`full`), or a crash of any process (`fast`)."
                .to_owned(),
        ],
        [
            code("mode"),
            values("mode"),
            default("mode"),
            "Read-only (`ro`), read and write (`rw`), or also create a missing file (`rwc`).".to_owned(),
        ],
        [
            code("cache_mib"),
            range(1, CACHE_MIB_MAX.into()),
            usual.cache_mib.to_string(),
            "Page cache of each connection, in MiB. A process has two connections, and a third one if it lists or counts jobs.".to_owned(),
        ],
    ]
}

/// The options of an address of a server.
fn redis_options() -> Vec<[String; 5]> {
    let options = OPTIONS.map(|(name, having, default)| {
        let (values, meaning) = match name {
            "durability" => (
                format!("`fast`, `full`, `replicated(n)` with n from {}", range(1, REPLICAS_MAX.into())),
                "What an accepted job survives. See [Durability](../guide/5-redis.md#durability).",
            ),
            "prefix" => (
                format!("1 to {PREFIX_BYTES_MAX} letters, digits and `-_.:`"),
                "Start of every key. Stores with different prefixes share nothing.",
            ),
            "eviction" => (
                code("allowed"),
                "Accepts a server that evicts keys when its memory is full. Jobs can be lost.",
            ),
            "ca" => ("a path".to_owned(), "File with the certificates to trust, instead of the system's."),
            "cert" => ("a path".to_owned(), "File with the client certificate. It needs `key`."),
            "key" => ("a path".to_owned(), "File with the key of that certificate."),
            "db" => ("a number".to_owned(), "Database. In other addresses, it is the path."),
            "user" => ("a text".to_owned(), "User. In other addresses, it is before the host."),
            "pass" => ("a text".to_owned(), "Password. In other addresses, it is before the host."),
            "sentinel_user" => ("a text".to_owned(), "User for the sentinels."),
            "sentinel_pass" => ("a text".to_owned(), "Password for the sentinels."),
            _ => panic!("the page has no text for the option {name}"),
        };
        let having = match having {
            Having::Every => "all",
            Having::Tls => "`rediss:`, `rediss+sentinel:`, `rediss+cluster:`",
            Having::Socket => "`redis+unix:`",
            Having::Sentinel => "`redis+sentinel:`, `rediss+sentinel:`",
        };
        [code(name), having.to_owned(), values, default.map_or(NONE.to_owned(), code), meaning.to_owned()]
    });
    options.into()
}

/// Limits of sizes and numbers.
fn limits() -> Vec<[String; 2]> {
    let bytes = |n: usize| size(n as u64);
    let limits = [
        ("payload of a job", bytes(PAYLOAD_BYTES_MAX)),
        ("result of a job", bytes(RESULT_BYTES_MAX)),
        ("progress and log lines of a job", bytes(NOTES_BYTES_MAX)),
        ("headers of a job", bytes(HEADERS_BYTES_MAX)),
        ("tags of a job", number(TAGS_MAX as u64)),
        ("kind, queue, group, key, tag or content type", bytes(NAME_BYTES_MAX)),
        ("idempotency key", bytes(IDEMPOTENCY_KEY_BYTES_MAX)),
        ("jobs in one call", number(BATCH_MAX as u64)),
        ("groups of a queue with limits of their own", number(GROUP_LIMITS_MAX as u64)),
        ("hosts in one address", number(NODES_MAX as u64)),
    ];
    limits.map(|(what, most)| [what.to_owned(), most]).into()
}

fn page() -> String {
    let (configuration, forward) = configuration();
    let named = variables_of_options().into_iter().map(|(name, options)| [code(name), options]);
    let others = VARIABLES.into_iter().map(|(name, meaning)| [code(name), meaning.to_owned()]);
    let given = GIVEN.map(|(name, by, meaning)| [code(name), code(by), meaning.to_owned()]);
    let flags_head = || row(["option", "default", "meaning"]);
    format!(
        "# Settings

Durations are written as `500ms`, `90s`, `15m`, `1h30m` or `2d`. Sizes are written as bytes, or with `KiB`, `MiB` or `GiB`.

* [Options of a job](#options-of-a-job)
* [Settings of a queue](#settings-of-a-queue)
* [Options of a worker](#options-of-a-worker)
* [Options of all commands](#options-of-all-commands)
* [Environment variables](#environment-variables)
* [Configuration file](#configuration-file)
* [Addresses of stores](#addresses-of-stores)
* [Limits](#limits)

## Options of a job

The first of these that has a value applies: the call, the type of the job, its queue, the default. For `lease`, the worker comes before the
queue.

{job}`punctual push` has these options:

{push}## Settings of a queue

`punctual queue set QUEUE KEY=VALUE` changes them, and `none` removes a value. In a program, it is `client.queue(name).update(…)`. They are kept in
the store, and apply to all workers at once.

{queue}A group's own limit overrides the limit for all groups. Ended jobs are removed when the first of their three limits is reached;
0 in any of them (an age of `0s`) keeps no jobs. `punctual queue pause` and `resume` set `paused`. A rate in JSON is
`{{\"max\":100,\"period_ms\":60000,\"burst\":1}}`.

## Options of a worker

In a program, they are methods of `Worker`:

{worker}`punctual work` has these options:

{work}A lock that `punctual lock run` holds has a lease of {lock} by default.

## Options of all commands

{globals}## Environment variables

An option on the command line overrides its variable. A variable overrides the configuration file.

{named}Other variables that are read:

{others}The commands that `punctual work --exec` and `punctual lock run` start have these variables:

{given}`work` removes `PUNCTUAL_STORE`, which can contain a password, unless `--pass-store` is set. `lock run` passes it on, so that
its command can use the same store.

## Configuration file

The file is TOML. It is `--config`, else `PUNCTUAL_CONFIG`, else the first of these that exists: `./punctual.toml`,
`punctual/config.toml` in `XDG_CONFIG_HOME` (default: `~/.config`), `/etc/punctual/punctual.toml`. A key that punctual does not know is an error.

{configuration}`[serve]` and `[work]` have the options of these commands, by their long names with `_` for `-`. An option that can be repeated is a list,
and a switch is `true`. What the command line or the environment sets comes first; a switch that the file sets cannot be turned off there.

```toml
store = \"redis://localhost\"

[serve]
listen = \"0.0.0.0:7890\"
tls_cert = \"/etc/ssl/jobs.pem\"
tls_key = \"/etc/ssl/jobs.key\"

[work]
exec = \"./deliver\"
queue = [\"mail\", \"newsletter\"]
slots = 20
```

A file that is not named, such as `./punctual.toml`, must belong to the user or to root.

Each `[[forward]]` table has these keys:

{forward}## Addresses of stores

`sqlite:PATH` is a file. Its options follow a `?`, with `&` between them:

{sqlite}`redis:`, `redis+unix:`, `redis+sentinel:` and `redis+cluster:` are servers of Redis or Valkey (see [On Redis](../guide/5-redis.md)).
With `rediss` instead of `redis`, connections use TLS (not with `redis+unix:`). The port of sentinels is {sentinel} by default.

{redis}`https://HOST` and `http://HOST` are servers of punctual (see [Use it as a store](../operating/server.md#use-it-as-a-store)).

`memory:` is a store that ends with its process. It has no options, and of all commands only `bench` takes it.

## Limits

{limits}",
        job = table([row(["option", "of `push`", "values", "default", "meaning"])].into_iter().chain(job_options())),
        push = table([flags_head()].into_iter().chain(flags("punctual push"))),
        queue = table([row(["key", "field in JSON", "values", "default", "meaning"])].into_iter().chain(queue_settings())),
        worker = table([row(["method", "values", "default", "meaning"])].into_iter().chain(worker_options())),
        work = table([flags_head()].into_iter().chain(flags("punctual work"))),
        lock = time(LOCK_LEASE_DEFAULT),
        globals = table([flags_head()].into_iter().chain(flags("punctual"))),
        named = table([row(["variable", "option"])].into_iter().chain(named)),
        others = table([row(["variable", "meaning"])].into_iter().chain(others)),
        given = table([row(["variable", "set by", "meaning"])].into_iter().chain(given)),
        configuration = table([row(["key", "values", "default", "meaning"])].into_iter().chain(configuration)),
        forward = table([row(["key", "values", "default", "meaning"])].into_iter().chain(forward)),
        sqlite = table([row(["option", "values", "default", "meaning"])].into_iter().chain(sqlite_options())),
        sentinel = SENTINEL_PORT,
        redis = table([row(["option", "addresses", "values", "default", "meaning"])].into_iter().chain(redis_options())),
        limits = table([row(["what", "at most"])].into_iter().chain(limits())).trim_end().to_owned() + "\n",
    )
}

#[test]
fn the_page_of_settings_is_what_the_code_says() {
    check("settings.md", &page());
}

#[test]
fn every_variable_is_listed() {
    let options = variables_of_options().into_iter().map(|(name, _)| name);
    let listed: BTreeSet<String> = options.chain(VARIABLES.map(|(name, _)| name.to_owned())).collect();
    let read = named_in_sources(&["env::var(\"", "env::var_os(\"", "variable(\""]);
    assert!(read.is_subset(&listed), "not listed: {:?}", read.difference(&listed).collect::<Vec<_>>());
    let unread = VARIABLES.iter().map(|(name, _)| *name).filter(|name| !read.contains(*name));
    // These two are read by a loop over their names.
    assert_eq!(unread.collect::<Vec<_>>(), ["SQLITE_TMPDIR", "TMPDIR"], "listed, but not read");
    let given = named_in_sources(&[".env(\""]).into_iter().filter(|name| !listed.contains(name));
    assert_eq!(given.collect::<BTreeSet<_>>(), GIVEN.map(|(name, ..)| name.to_owned()).into());
}

/// Defaults that clap does not know, because the store, the queue or a constant has them.
#[test]
fn help_names_the_defaults_of_the_library() {
    let lease = time(LEASE_DEFAULT);
    let attempts = format!("the queue's, else {MAX_ATTEMPTS_DEFAULT}");
    let timeout = format!("the queue's, else {}", time(TIMEOUT_DEFAULT));
    let backoff = format!("the queue's, else {}", backoff_default().replace('`', ""));
    let slots = forward::SLOTS.to_string();
    for (path, option, default) in [
        ("punctual work", "--lease", &format!("the queue's, else {lease}")),
        ("punctual push", "--lease", &format!("the worker's, the queue's, else {lease}")),
        ("punctual push", "--max-attempts", &attempts),
        ("punctual push", "--timeout", &timeout),
        ("punctual push", "--backoff", &backoff),
        ("punctual forward", "--slots", &slots),
    ] {
        let row = flags(path).into_iter().find(|row| row[0].contains(option));
        assert_eq!(row.map(|row| row[1].clone()).as_ref(), Some(default), "{path} {option}");
    }
    let lock = flags("punctual lock run").into_iter().find(|row| row[0].contains("--lease"));
    assert_eq!(lock.map(|row| row[1].clone()), Some(time(LOCK_LEASE_DEFAULT)));
    let help = crate::commands::queue::settings::HELP;
    let (short, long) = (Keep::SHORT, Keep::LONG);
    let age = |keep: Keep| time(Duration::from_millis(keep.age_ms));
    for text in [
        format!("(default: {}, dead {})", age(short), age(long)),
        format!("(default: {}, dead {})", number(short.count), number(long.count)),
        format!("(default: {}, dead {})", size(short.bytes), size(long.bytes)),
    ] {
        assert!(help.contains(&text), "queue set --help does not say {text}");
    }
}

#[tokio::test]
async fn every_option_of_an_address_of_a_file_is_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.db").display().to_string();
    Client::connect(&format!("sqlite:{file}")).await.expect("a store");
    for option in &SQLITE_OPTIONS {
        let address = format!("sqlite:{file}?{}={}", option.name, option.value);
        Client::connect(&address).await.unwrap_or_else(|e| panic!("{address}: {e}"));
    }
    for (mib, is_one) in [(0, false), (1, true), (CACHE_MIB_MAX, true), (CACHE_MIB_MAX + 1, false)] {
        let opened = Client::connect(&format!("sqlite:{file}?cache_mib={mib}")).await;
        assert_eq!(opened.is_ok(), is_one, "{mib}");
    }
}
