//! Imports a list: moves it aside in one step, then reads, enqueues and trims it in batches, from the end that consumers pop.

use redis::Value;

use super::{
    BATCH_ENTRIES_MAX, Importer,
    batch::push,
    keys::Source,
    layout::{Layout, ListKeys},
    making::{Made, Maker, sample},
    server::{Call, odd, only, read},
    sorted::too_large,
};
use crate::errors::Result;

pub(super) struct ListImport<'i, 'a> {
    importer: &'i mut Importer<'a>,
    layout: &'i ListKeys,
    source: &'i Source,
    maker: Maker<'i>,
}

/// What a peek found.
pub(super) struct Found {
    /// Taken off before: the place of the first element.
    taken: u64,
    /// Whether there may be more after it.
    is_cut: bool,
    pub(super) elements: Vec<Element>,
}

/// An element, as it was looked at.
pub(super) struct Element {
    text: Vec<u8>,
    payload: Vec<u8>,
    wrong: String,
}

impl<'i, 'a> ListImport<'i, 'a> {
    pub(super) fn new(
        importer: &'i mut Importer<'a>,
        layout: &'i Layout,
        source: &'i Source,
        maker: Maker<'i>,
    ) -> Self {
        let layout = layout.lists.as_ref().expect("invariant: a list comes of a layout that has some");
        Self { importer, layout, source, maker }
    }

    /// Until all that stood there when it began is here: that is when the list was moved, and what came of it has an end.
    pub(super) async fn run(mut self) -> Result {
        let (server, owner) = (self.importer.server, self.importer.owner.clone());
        let ListKeys { next, backup, context, .. } = self.layout;
        let (backup, context) = (backup.as_deref(), context.as_deref());
        let (mut trim, mut is_moved): (Option<Call<'_>>, bool) = (None, false);
        loop {
            let claim = server.claim(self.source, &owner, *next, backup);
            let aside = self.source.aside();
            let peek = server.peek(self.source, &aside, &owner, *next, context, BATCH_ENTRIES_MAX);
            let calls: Vec<_> = trim.take().into_iter().chain([claim, peek]).collect();
            let mut answers = server.run(&calls).await?;
            let found = Found::read(answers.pop().ok_or_else(odd)?)?;
            is_moved |= read::<u8>(answers.pop().ok_or_else(odd)?)? == 1;
            if !found.elements.is_empty() {
                let refused = self.enqueue(&found).await?;
                let gone = (found.elements.len(), refused.as_slice());
                trim = Some(server.trim(self.source, &owner, *next, context.is_some(), found.taken, gone));
                if found.is_cut || !is_moved {
                    continue;
                }
            }
            if self.finish(trim.take()).await? {
                return Ok(());
            }
        }
    }

    /// Ends the run. Returns `false` if elements were moved aside that must be imported first.
    async fn finish(&mut self, trim: Option<Call<'_>>) -> Result<bool> {
        let (server, owner) = (self.importer.server, &self.importer.owner);
        let more = (self.layout.context.as_deref(), self.layout.backup.as_deref());
        let mut calls: Vec<_> = trim.into_iter().collect();
        let is_kept = loop {
            calls.push(server.finish(self.source, owner, more));
            match read::<String>(only(server.run(&calls).await?)?)?.as_str() {
                "finished" => break false,
                "kept" => break true,
                "again" => return Ok(false),
                _ => calls.clear(),
            }
        };
        let (kept, key) = (&mut self.importer.tally.kept, &self.source.key);
        match more.0.filter(|_| is_kept) {
            Some(context) => _ = kept.insert(key.clone(), context.to_owned()),
            None => _ = kept.remove(key),
        }
        Ok(true)
    }

    /// Hands the jobs of a batch over; answers which elements are to be put aside for people.
    async fn enqueue(&mut self, found: &Found) -> Result<Vec<usize>> {
        let mut over = self.importer.tally.of(&self.source.key);
        let (mut places, mut jobs, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for (at, element) in found.elements.iter().enumerate() {
            match element.job(&self.maker, self.layout, found.taken + at as u64) {
                Ok(job) => {
                    places.push(at);
                    jobs.push(job);
                }
                Err(why) => {
                    over.refuse(&sample(&element.text), &why);
                    refused.push(at);
                }
            }
        }
        for (at, answer) in places.into_iter().zip(push(&self.importer.session.client, jobs).await?) {
            if let Some(why) = self.importer.tally.count(answer) {
                over.refuse(&sample(&found.elements[at].text), &why);
                refused.push(at);
            }
        }
        over.moved_to = Some(self.source.refused());
        self.importer.tally.put(&self.source.key, over);
        self.importer.show();
        Ok(refused)
    }
}

impl Found {
    pub(super) fn read(value: Value) -> Result<Self> {
        let mut parts = read::<Vec<Vec<u8>>>(value)?.into_iter();
        let mut text = || String::from_utf8(parts.next().unwrap_or_default()).map_err(|_| odd());
        let (taken, is_cut) = (text()?.parse().map_err(|_| odd())?, text()? == "1");
        let mut elements = Vec::new();
        while let Some(text) = parts.next() {
            let payload = parts.next().ok_or_else(odd)?;
            let wrong = String::from_utf8(parts.next().ok_or_else(odd)?).map_err(|_| odd())?;
            elements.push(Element { text, payload, wrong });
        }
        Ok(Self { taken, is_cut, elements })
    }
}

impl Element {
    pub(super) fn job(&self, maker: &Maker<'_>, layout: &ListKeys, place: u64) -> Made {
        match (self.wrong.as_str(), &layout.context) {
            ("", Some(_)) => maker.queued(place, &self.payload, Some(&self.text)),
            ("", None) => maker.queued(place, &self.text, None),
            ("missing", _) => Err("the message is missing".into()),
            (size, _) => Err(too_large(size)),
        }
    }

    pub(super) fn shown(&self) -> String {
        sample(&self.text)
    }
}
