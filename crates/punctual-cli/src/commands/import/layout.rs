//! The five layouts of the command line, and their common form: sorted sets, lists, or both.

use std::{fmt::Write as _, path::PathBuf};

use clap::builder::NonEmptyStringValueParser as NonEmpty;

use crate::{
    config,
    errors::{Failure, Result},
};

/// Most shards of a sorted set.
const SHARDS_MAX: u16 = 1_024;
/// The placeholder of the member in `--payload-key`.
const MEMBER: &str = "{member}";

/// Import the jobs of a hand-written queue on Redis.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Stop the old consumers first. Old producers can keep running. If this command is killed, no job is lost or imported twice: \
run it again, and it continues where it stopped.

The command ends when all entries are imported. Run it once more after the last producer was switched, or use --follow. \
docs/moving/ has a page for each layout.

Examples:
  punctual import zset --from redis://old --key delay --kind email.send --dry-run
  punctual import lists --from redis://old --follow")]
pub(crate) enum Import {
    /// Import a sorted set of ids by time, with a string key for each payload.
    ZsetKeys(ZsetKeys),
    /// Import a sorted set of ids by time, with a hash of their payloads.
    ZsetHash(ZsetHash),
    /// Import one or more sorted sets of payloads by time.
    Zset(Zset),
    /// Import `delayed:`, a sorted set of [id, queue, function, args], and lists `queue:NAME` of [function, args].
    Lists(Lists),
    /// Import a list, the entries that were popped and not acknowledged, and a hash of messages.
    Backup(Backup),
}

/// The old queue's server, and how it is read.
#[derive(Debug, clap::Args)]
pub(crate) struct From {
    #[arg(
        long = "from",
        env = "PUNCTUAL_IMPORT_FROM",
        hide_env_values = true,
        required_unless_present = "from_file",
        value_name = "URL",
        help = "Address of the old queue's server: redis://[USER:PASSWORD@]HOST[:6379][/DB] or redis+unix:///PATH"
    )]
    url: Option<String>,
    /// File with that address. It hides a password, which other users can see in --from.
    #[arg(long = "from-file", id = "from_file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print the number of entries and show the first three as jobs; write nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Import new entries every second, until Ctrl-C.
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) follow: bool,
}

impl From {
    /// The address of the server; one in a file comes before one in the environment.
    pub(super) fn url(&self) -> Result<String> {
        match (&self.file, &self.url) {
            (Some(file), _) => config::secret(file),
            (None, url) => Ok(url.clone().unwrap_or_default()),
        }
    }
}

/// What an entry becomes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Becomes {
    #[command(flatten)]
    pub(super) kinds: Kinds,
    /// Queue of the jobs; with --queue-field, of jobs whose payload names none (default: default).
    #[arg(short, long, default_value = "default", hide_default_value = true)]
    pub(super) queue: String,
    /// Field of a JSON payload that names the queue (default: none).
    #[arg(long, value_name = "FIELD")]
    pub(super) queue_field: Option<String>,
}

/// What names the kind of a job. One of them at least: a group takes every field of its struct, so that it has one of its own.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = true, required = true)]
pub(crate) struct Kinds {
    /// Kind of the jobs; with --kind-field, of jobs whose payload names none.
    #[arg(long, value_parser = NonEmpty::new())]
    pub(super) kind: Option<String>,
    /// Field of a JSON payload that names the kind.
    #[arg(long, value_name = "FIELD")]
    pub(super) kind_field: Option<String>,
}

/// Sorted sets, and what their scores are.
#[derive(Debug, clap::Args)]
pub(crate) struct SortedArgs {
    /// Key of the sorted set, or a pattern such as delay:*.
    #[arg(long, value_parser = NonEmpty::new())]
    key: String,
    /// Number of sorted sets with numbered keys, 1 to 1,024: --key delay --shards 16 reads delay:0 to delay:15 (default: none).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    shards: Option<u16>,
    /// Unit of the scores, a time since 1970: s for seconds, ms for milliseconds (default: s).
    #[arg(
        long,
        value_enum,
        default_value = "s",
        hide_default_value = true,
        hide_possible_values = true,
        value_name = "s|ms"
    )]
    unit: Unit,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual import zset-keys --from redis://old --key delay --payload-key 'job:{member}' --kind email.send
  punctual import zset-keys --from-file url --key delay --payload-key 'job:{member}' --kind k --dry-run")]
pub(crate) struct ZsetKeys {
    #[command(flatten)]
    from: From,
    #[command(flatten)]
    sorted: SortedArgs,
    /// Key of a payload, with {member} for the id, such as job:{member}. It is removed with its entry.
    #[arg(long, value_name = "TEMPLATE")]
    payload_key: String,
    #[command(flatten)]
    becomes: Becomes,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual import zset-hash --from redis://old --key delay --hash jobs --kind email.send
  punctual import zset-hash --from redis://old --key delay --hash jobs --kind-field type --dry-run")]
pub(crate) struct ZsetHash {
    #[command(flatten)]
    from: From,
    #[command(flatten)]
    sorted: SortedArgs,
    /// Key of the hash of payloads by id. A payload is removed with its entry.
    #[arg(long, value_parser = NonEmpty::new())]
    hash: String,
    #[command(flatten)]
    becomes: Becomes,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual import zset --from redis://old --key delay --kind email.send --dry-run
  punctual import zset --from redis://old --key delay --shards 16 --unit ms --kind email.send -q mail")]
pub(crate) struct Zset {
    #[command(flatten)]
    from: From,
    #[command(flatten)]
    sorted: SortedArgs,
    #[command(flatten)]
    becomes: Becomes,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual import lists --from redis://old --dry-run
  punctual import lists --from redis://old --lists 'queue:*' --next right --follow")]
pub(crate) struct Lists {
    #[command(flatten)]
    from: From,
    /// Key of the sorted set of jobs that are due later, with scores in seconds (default: delayed:).
    #[arg(long, default_value = "delayed:", hide_default_value = true, value_name = "KEY")]
    delayed: String,
    /// Pattern of the lists; the text at * is the queue (default: queue:*).
    #[arg(long = "lists", default_value = "queue:*", hide_default_value = true, value_name = "PATTERN")]
    pattern: String,
    /// Queue of all jobs (default: the queue of each entry).
    #[arg(short, long)]
    queue: Option<String>,
    /// End at which consumers pop: left as LPOP, or right as RPOP (default: left).
    #[arg(
        long,
        value_enum,
        default_value = "left",
        hide_default_value = true,
        hide_possible_values = true,
        value_name = "left|right"
    )]
    next: End,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual import backup --from redis://old --list jobs --kind email.send
  punctual import backup --from redis://old --list jobs --backup running --context messages --kind-field type")]
pub(crate) struct Backup {
    #[command(flatten)]
    from: From,
    /// Key of the list of waiting entries.
    #[arg(long, value_parser = NonEmpty::new(), value_name = "KEY")]
    list: String,
    /// Key of the entries that were popped and not acknowledged, a hash, set, sorted set or list; they are due at once.
    #[arg(long = "backup", value_parser = NonEmpty::new(), value_name = "KEY")]
    popped: Option<String>,
    /// Key of the hash of messages, if the list has their ids. A message is removed after its last id.
    #[arg(long, value_parser = NonEmpty::new(), value_name = "KEY")]
    context: Option<String>,
    /// End at which consumers pop: left as LPOP, or right as RPOP (default: left).
    #[arg(
        long,
        value_enum,
        default_value = "left",
        hide_default_value = true,
        hide_possible_values = true,
        value_name = "left|right"
    )]
    next: End,
    #[command(flatten)]
    becomes: Becomes,
}

/// What scores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Unit {
    /// Seconds, whole or not.
    S,
    /// Milliseconds.
    Ms,
}

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum End {
    /// The end of LPOP.
    Left,
    /// The end of RPOP.
    Right,
}

impl End {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }
}

/// What there is to take over.
#[derive(Debug)]
pub(super) struct Layout {
    /// As on the command line.
    name: &'static str,
    pub(super) sorted: Option<Sorted>,
    pub(super) lists: Option<ListKeys>,
    pub(super) shape: Shape,
}

/// Sorted sets.
#[derive(Debug)]
pub(super) struct Sorted {
    pub(super) keys: Keys,
    pub(super) unit: Unit,
    pub(super) body: Body,
}

/// Lists.
#[derive(Debug)]
pub(super) struct ListKeys {
    pub(super) keys: Keys,
    pub(super) next: End,
    pub(super) backup: Option<String>,
    pub(super) context: Option<String>,
}

/// Where the payload of a sorted set's member is.
#[derive(Debug)]
pub(super) enum Body {
    /// It is the member.
    Member,
    /// In a key of its own, between these.
    Key(String, String),
    /// In this hash.
    Hash(String),
}

/// Which keys are meant.
#[derive(Debug)]
pub(super) enum Keys {
    /// This one.
    One(String),
    /// All that match.
    Pattern(String),
    /// With the numbers up to here after a colon.
    Numbered(String, u16),
}

/// How an entry is read.
#[derive(Debug)]
pub(super) enum Shape {
    /// Its payload is the job's.
    Payload(Becomes),
    /// JSON: [id, queue, function, args], in lists [function, args], too. All go to this queue, if one is named.
    Call(Option<String>),
}

impl Import {
    pub(super) const fn from(&self) -> &From {
        match self {
            Self::ZsetKeys(args) => &args.from,
            Self::ZsetHash(args) => &args.from,
            Self::Zset(args) => &args.from,
            Self::Lists(args) => &args.from,
            Self::Backup(args) => &args.from,
        }
    }

    /// Whether it leaves everything as it is.
    pub(crate) const fn is_dry(&self) -> bool {
        self.from().dry_run
    }

    /// What it comes to.
    pub(super) fn layout(&self) -> Result<Layout> {
        Ok(match self {
            Self::ZsetKeys(args) => {
                let (before, behind) = template(&args.payload_key)?;
                args.sorted.layout("zset-keys", Body::Key(before, behind), &args.becomes)?
            }
            Self::ZsetHash(args) => {
                args.sorted.layout("zset-hash", Body::Hash(args.hash.clone()), &args.becomes)?
            }
            Self::Zset(args) => args.sorted.layout("zset", Body::Member, &args.becomes)?,
            Self::Lists(args) => Layout {
                name: "lists",
                sorted: Some(Sorted {
                    keys: Keys::One(args.delayed.clone()),
                    unit: Unit::S,
                    body: Body::Member,
                }),
                lists: Some(ListKeys {
                    keys: Keys::of(&args.pattern),
                    next: args.next,
                    backup: None,
                    context: None,
                }),
                shape: Shape::Call(args.queue.clone()),
            },
            Self::Backup(args) => Layout {
                name: "backup",
                sorted: None,
                lists: Some(ListKeys {
                    keys: Keys::One(args.list.clone()),
                    next: args.next,
                    backup: args.popped.clone(),
                    context: args.context.clone(),
                }),
                shape: Shape::Payload(args.becomes.clone()),
            },
        })
    }
}

impl SortedArgs {
    fn layout(&self, name: &'static str, body: Body, becomes: &Becomes) -> Result<Layout> {
        let keys = match self.shards {
            Some(_) if is_pattern(&self.key) => {
                return Err(Failure::invalid("--shards does not work with a pattern in --key")
                    .hint("write --key 'delay:*', or --key delay --shards 16"));
            }
            Some(shards) => Keys::Numbered(self.key.clone(), shards),
            None => Keys::of(&self.key),
        };
        let sorted = Some(Sorted { keys, unit: self.unit, body });
        Ok(Layout { name, sorted, lists: None, shape: Shape::Payload(becomes.clone()) })
    }
}

impl Keys {
    fn of(text: &str) -> Self {
        if is_pattern(text) { Self::Pattern(text.to_owned()) } else { Self::One(text.to_owned()) }
    }

    /// Returns the common prefix and suffix of the keys.
    pub(super) fn around(&self) -> (&str, &str) {
        match self {
            Self::One(key) => (key.rfind(':').map_or("", |colon| &key[..=colon]), ""),
            Self::Pattern(pattern) => (
                pattern.split(['*', '?', '[']).next().unwrap_or_default(),
                pattern.rsplit(['*', '?', ']']).next().unwrap_or_default(),
            ),
            Self::Numbered(key, _) => (key, ""),
        }
    }
}

fn is_pattern(key: &str) -> bool {
    key.contains(['*', '?', '['])
}

/// Splits a template at the member.
fn template(text: &str) -> Result<(String, String)> {
    match text.split_once(MEMBER) {
        Some((before, behind)) if !behind.contains(MEMBER) => Ok((before.to_owned(), behind.to_owned())),
        _ => Err(Failure::invalid(format!("--payload-key {text:?} must contain {{member}} once"))
            .hint("write the id as {member}: --payload-key 'job:{member}'")),
    }
}

impl Layout {
    /// What the ids of jobs follow from besides their entries, and what is done with these: an import that is resumed must make the
    /// same of what it has taken and not removed.
    pub(super) fn how(&self, store: &str) -> String {
        let queue = match &self.shape {
            Shape::Call(None) => "queues of their own".to_owned(),
            Shape::Call(Some(queue)) | Shape::Payload(Becomes { queue, queue_field: None, .. }) => {
                format!("queue {queue}")
            }
            Shape::Payload(Becomes { queue, queue_field: Some(field), .. }) => {
                format!("the queue in {field}, else {queue}")
            }
        };
        let mut how = format!("{} into store {}, {queue}", self.name, whole(store));
        if let Some(Sorted { unit, body, .. }) = &self.sorted {
            match body {
                Body::Member => {}
                Body::Key(before, behind) => _ = write!(how, ", payloads in {before}{MEMBER}{behind}"),
                Body::Hash(hash) => _ = write!(how, ", payloads in {hash}"),
            }
            if *unit == Unit::Ms {
                how.push_str(", scores in ms");
            }
        }
        if let Some(ListKeys { next, backup, context, .. }) = &self.lists {
            if let Some(backup) = backup {
                _ = write!(how, ", popped into {backup}");
            }
            if let Some(context) = context {
                _ = write!(how, ", messages in {context}");
            }
            if *next == End::Right {
                how.push_str(", popped from the right");
            }
        }
        how
    }
}

/// The address of a store, whichever way a file was named.
fn whole(store: &str) -> String {
    let path = store.strip_prefix("sqlite:").and_then(|path| std::fs::canonicalize(path).ok());
    path.map_or_else(|| store.to_owned(), |path| format!("sqlite:{}", path.display()))
}
