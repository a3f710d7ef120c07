//! Imports a sorted set: reads, enqueues and removes unchanged entries in batches, from the lowest score on.

use redis::Value;

use super::{
    BATCH_ENTRIES_MAX, Importer,
    batch::push,
    keys::Source,
    layout::{Body, Layout, Sorted, Unit},
    making::{Made, Maker, number, sample},
    server::{Call, Server, odd, only, read},
    tally::Over,
};
use crate::{
    errors::{Failure, Result},
    output::clean,
};

/// How often a set is read once more, for entries that were changed or come after entries that stay.
const PASSES_MAX: u32 = 10;
/// Most looks into other sources that a removal takes.
const LOOKS_MAX: usize = 16_000;
/// Times around now are below it in seconds until the year 5138, and above it in milliseconds since 1973.
const SECONDS_MAX: f64 = 1e11;

pub(super) struct SortedImport<'i, 'a> {
    importer: &'i mut Importer<'a>,
    layout: &'i Sorted,
    source: &'i Source,
    /// Those that may share payloads with it.
    others: Vec<&'i str>,
    maker: Maker<'i>,
}

/// What a look found.
pub(super) struct Found {
    pub(super) round: u64,
    /// Whether there may be more after it.
    is_cut: bool,
    pub(super) entries: Vec<Entry>,
}

/// A member, as it was looked at.
pub(super) struct Entry {
    member: Vec<u8>,
    score: Vec<u8>,
    payload: Vec<u8>,
    digest: Vec<u8>,
    wrong: String,
}

impl<'i, 'a> SortedImport<'i, 'a> {
    pub(super) fn new(
        importer: &'i mut Importer<'a>,
        layout: &'i Layout,
        (source, all): (&'i Source, &'i [Source]),
        maker: Maker<'i>,
    ) -> Self {
        let layout = layout.sorted.as_ref().expect("invariant: a sorted set comes of a layout that has some");
        let others = match layout.body {
            Body::Member => Vec::new(),
            _ => all.iter().filter(|other| *other != source).map(|other| other.key.as_str()).collect(),
        };
        Self { importer, layout, source, others, maker }
    }

    pub(super) async fn run(mut self) -> Result {
        for _ in 0..PASSES_MAX {
            let (over, is_done) = self.pass().await?;
            self.importer.tally.put(&self.source.key, over);
            if is_done {
                break;
            }
        }
        let (server, owner) = (self.importer.server, &self.importer.owner);
        server.run(&[server.finish(self.source, owner, (None, None))]).await?;
        Ok(())
    }

    /// Once from the lowest score to the highest. Answers what is over, and whether nothing can have been missed.
    async fn pass(&mut self) -> Result<(Over, bool)> {
        let (server, owner) = (self.importer.server, self.importer.owner.clone());
        let (mut over, mut taken, mut changed) = (Over::default(), 0, false);
        let mut removal: Option<Call<'_>> = None;
        let most = BATCH_ENTRIES_MAX.min(LOOKS_MAX / self.others.len().max(1));
        loop {
            // What is over stays at the lowest scores: the look passes over as many.
            let skip = usize::try_from(over.sum()).unwrap_or(usize::MAX);
            let look = server.look(self.source, &owner, &self.layout.body, skip, most);
            let mut answers =
                server.run(&removal.take().into_iter().chain([look]).collect::<Vec<_>>()).await?;
            let found = Found::read(answers.pop().ok_or_else(odd)?)?;
            if let Some(letters) = answers.pop() {
                changed |= self.settled(letters)?;
            }
            if found.entries.is_empty() && !found.is_cut {
                break;
            }
            // An open batch of which nothing is left is closed by the removal of nothing.
            let durable = self.enqueue(&found, &mut over).await?;
            taken += durable.len();
            let entries = durable.iter().map(|&at| found.entries[at].key());
            let sources = (self.source, self.others.as_slice());
            let call = server.remove(sources, &owner, &self.layout.body, found.round, entries);
            if found.is_cut {
                removal = Some(call);
            } else {
                changed |= self.settled(only(server.run(&[call]).await?)?)?;
                break;
            }
        }
        let is_done = !changed && (taken == 0 || over.sum() == 0);
        Ok((over, is_done))
    }

    /// Hands the jobs of a batch over; answers which entries are durable now.
    async fn enqueue(&mut self, found: &Found, over: &mut Over) -> Result<Vec<usize>> {
        let (mut places, mut jobs) = (Vec::new(), Vec::new());
        for (at, entry) in found.entries.iter().enumerate() {
            match entry.job(&self.maker, self.layout, found.round) {
                Ok(job) => {
                    places.push(at);
                    jobs.push(job);
                }
                Err(why) if entry.wrong == "missing" => over.leave(&sample(&entry.member), &why),
                Err(why) => over.refuse(&sample(&entry.member), &why),
            }
        }
        let answers = push(&self.importer.session.client, jobs).await?;
        let mut durable = Vec::new();
        for (at, answer) in places.into_iter().zip(answers) {
            match self.importer.tally.count(answer) {
                Some(why) => over.refuse(&sample(&found.entries[at].member), &why),
                None => durable.push(at),
            }
        }
        self.importer.show();
        Ok(durable)
    }

    /// Reads what became of a removal; answers whether something changed meanwhile, and so is still there.
    fn settled(&mut self, letters: Value) -> Result<bool> {
        let letters: String = read(letters)?;
        self.importer.tally.vanished += letters.matches('g').count() as u64;
        Ok(letters.contains('c'))
    }
}

impl Found {
    pub(super) fn read(value: Value) -> Result<Self> {
        let mut parts = read::<Vec<Vec<u8>>>(value)?.into_iter();
        let mut text = || String::from_utf8(parts.next().unwrap_or_default()).map_err(|_| odd());
        let (round, is_cut) = (text()?.parse().map_err(|_| odd())?, text()? == "1");
        let mut entries = Vec::new();
        while let Some(member) = parts.next() {
            let mut part = || parts.next().ok_or_else(odd);
            let (score, payload, digest) = (part()?, part()?, part()?);
            let wrong = String::from_utf8(part()?).map_err(|_| odd())?;
            entries.push(Entry { member, score, payload, digest, wrong });
        }
        Ok(Self { round, is_cut, entries })
    }
}

impl Entry {
    /// By which a removal knows whether it is unchanged.
    fn key(&self) -> [&[u8]; 3] {
        [&self.member, &self.score, &self.digest]
    }

    pub(super) fn job(&self, maker: &Maker<'_>, layout: &Sorted, round: u64) -> Made {
        match self.wrong.as_str() {
            "" => {}
            "missing" => return Err("the payload is missing".into()),
            "type" => return Err("the payload is not a string".into()),
            size => return Err(too_large(size)),
        }
        let (payload, id) = match layout.body {
            Body::Member => (&self.member, None),
            Body::Key(..) | Body::Hash(_) => (&self.payload, Some(self.member.as_slice())),
        };
        maker.due((&self.member, &self.score, layout.unit), round, payload, id)
    }

    pub(super) fn shown(&self) -> String {
        sample(&self.member)
    }
}

/// What is wrong with an entry of so many bytes.
pub(super) fn too_large(size: &str) -> String {
    format!("payload of {size} bytes is over the limit of {}", punctual::limits::PAYLOAD_BYTES_MAX)
}

/// Refuses scores that look like seconds where they are to be milliseconds: all would be due at once. By the one in the middle, since
/// some may have marks of their own at either end. In the other direction each is refused by itself: it is past the year 9999.
/// What an import was stopped at was looked at when that began, and what is left of it may look as it does.
pub(super) async fn check_unit(server: &Server, source: &Source, unit: Unit) -> Result {
    if unit != Unit::Ms || server.exists(&source.state()).await? {
        return Ok(());
    }
    let entries: u64 = server.say(redis::cmd("ZCARD").arg(&source.key)).await?;
    let mut range = redis::cmd("ZRANGE");
    let range = range.arg(&source.key).arg(entries / 2).arg(entries / 2).arg("WITHSCORES");
    let found: Vec<Vec<u8>> = server.say(range).await?;
    match found.get(1).and_then(|score| number(score).ok()) {
        Some(score) if 0.0 < score && score < SECONDS_MAX => {
            let text =
                format!("the scores of {:?} do not look like milliseconds: {score}", clean(&source.key));
            Err(Failure::invalid(text)
                .why("nothing was imported")
                .hint("read the scores as seconds: --unit s"))
        }
        _ => Ok(()),
    }
}
