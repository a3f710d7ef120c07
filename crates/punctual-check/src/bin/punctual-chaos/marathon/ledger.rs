//! The ledger of a marathon: a line of JSON for each slice that was judged, on disk before the next one begins. A line that was cut
//! off when it was written is removed, and its slice is run again.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use punctual_check::{Lateness, Verdict, Word};
use serde::{Deserialize, Serialize};

use super::plan::{Slice, StoreKind};
use crate::drill::Outcome;

/// The file in the folder of a marathon.
pub(super) const FILE: &str = "ledger.ndjson";

/// How a slice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum End {
    /// Every rule holds.
    Valid,
    /// A rule is broken.
    Invalid,
    /// Nothing was proved.
    Vacuous,
    /// It did not come to a verdict.
    Failed,
}

/// A line. Times are in milliseconds, but for `seconds`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// When it ended, in UTC.
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) store: StoreKind,
    /// Of the marathon.
    pub(crate) marathon: u64,
    pub(crate) slice: u32,
    /// How many there are.
    pub(crate) of: u32,
    /// Of the slice.
    pub(crate) seed: u64,
    pub(crate) end: End,
    /// That were acknowledged, those of its topic and its schedule included.
    pub(crate) jobs: u64,
    /// SIGKILLs, those of servers included.
    pub(crate) kills: u64,
    pub(crate) server_kills: u64,
    /// Processes that stood still for longer than their leases.
    pub(crate) frozen: u64,
    /// Other harm: connections cut, say.
    pub(crate) harmed: u64,
    /// How often the machine itself stood still for long enough to cost a lease. Earlier records do not say.
    #[serde(default)]
    pub(crate) stalls: u64,
    /// Changes of the number of shards.
    pub(crate) changes: u64,
    /// Kills and stops that cut something short.
    pub(crate) hits: u64,
    pub(crate) lost: u64,
    pub(crate) early: u64,
    /// Duplicates that nothing explains.
    pub(crate) unexplained: u64,
    pub(crate) stuck: u64,
    /// Violations of all rules.
    pub(crate) violations: u64,
    /// Duplicates that the faults explain, and how many these would.
    pub(crate) duplicates: u64,
    pub(crate) budget: u64,
    /// Ordinary retries.
    pub(crate) retried: u64,
    pub(crate) late_p50: u64,
    pub(crate) late_p99: u64,
    pub(crate) late_max: u64,
    pub(crate) seconds: f64,
    /// Of a slice that is not valid: what was seen first, and the command that repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repeat: Option<String>,
}

/// When and of what a record is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) date: &'a str,
    pub(crate) commit: &'a str,
    pub(crate) marathon: u64,
    pub(crate) of: u32,
    pub(crate) slice: &'a Slice,
    pub(crate) seconds: f64,
}

impl Record {
    /// Of a slice that was judged, or that failed for this reason.
    pub(crate) fn new(about: About<'_>, verdict: Result<&Verdict, &str>) -> Self {
        let About { date, commit, marathon, of, slice, seconds } = about;
        let nothing = Verdict::default();
        let told = verdict.unwrap_or(&nothing);
        let Lateness { p50, p99, max, .. } = told.lateness_ms;
        let end = match verdict.map(|told| told.verdict) {
            Ok(Word::Valid) => End::Valid,
            Ok(Word::Invalid) => End::Invalid,
            Ok(Word::Vacuous) => End::Vacuous,
            Err(_) => End::Failed,
        };
        let seen = match verdict {
            Ok(told) => told.violations.first().map(|it| match it.id {
                Some(id) => format!("{}: job {id}: {}", it.rule, it.detail),
                None => format!("{}: {}", it.rule, it.detail),
            }),
            Err(problem) => Some(problem.to_owned()),
        };
        Self {
            date: date.to_owned(),
            commit: commit.to_owned(),
            store: slice.store,
            marathon,
            slice: slice.number,
            of,
            seed: slice.seed,
            end,
            jobs: told.acked,
            kills: told.kills + told.server_kills,
            server_kills: told.server_kills,
            frozen: told.frozen,
            harmed: told.harmed,
            stalls: told.stalls,
            changes: told.moved.len() as u64,
            hits: told.hits,
            lost: told.lost,
            early: told.early,
            unexplained: told.duplicated.unexplained,
            stuck: told.count("D8"),
            violations: told.rules.values().sum(),
            duplicates: told.duplicated.explained,
            budget: told.duplicated.budget,
            retried: told.retried,
            late_p50: p50,
            late_p99: p99,
            late_max: max,
            seconds: (seconds * 10.0).round() / 10.0,
            seen: seen.filter(|_| end != End::Valid),
            repeat: (end != End::Valid).then(|| format!("punctual-chaos {}", slice.command().join(" "))),
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.end == End::Valid
    }
}

/// The file, open for the next line.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
    pub(crate) records: Vec<Record>,
}

impl Ledger {
    /// Opens the one in the folder, which must be of these slices, or begins one. A line that was cut off is removed.
    pub(crate) fn open(folder: &Path, marathon: u64, slices: &[Slice]) -> Outcome<Self> {
        let path = folder.join(FILE);
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            eprintln!("{}: the last line was cut off, and is removed", path.display());
            file.set_len(whole as u64)?;
        }
        file.seek(SeekFrom::End(0))?;
        file.sync_all()?;
        File::open(folder)?.sync_all()?;
        let mut records = Vec::new();
        for (number, line) in (1..).zip(text[..whole].split_inclusive(|byte| *byte == b'\n')) {
            let place = || format!("{}, line {number}", path.display());
            let record: Record = serde_json::from_slice(line)
                .map_err(|error| format!("{} cannot be read: {error}; correct or remove it", place()))?;
            let slice = slices.get(records.len());
            let is_its = |slice: &Slice| {
                (slice.number, slice.seed, slice.store, marathon)
                    == (record.slice, record.seed, record.store, record.marathon)
            };
            if !slice.is_some_and(is_its) {
                return Err(format!("{} is of another plan: use another folder", place()).into());
            }
            records.push(record);
        }
        Ok(Self { file, records })
    }

    /// Adds a line; comes back when it is on disk.
    pub(crate) fn add(&mut self, record: Record) -> Outcome<()> {
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.file.sync_all()?;
        self.records.push(record);
        Ok(())
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut all = Totals::default();
        self.records.iter().for_each(|record| all.add(record));
        all
    }
}

/// What all slices come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Totals {
    pub(crate) slices: u32,
    /// That are not valid.
    pub(crate) bad: u32,
    jobs: u64,
    kills: u64,
    server_kills: u64,
    frozen: u64,
    harmed: u64,
    changes: u64,
    hits: u64,
    lost: u64,
    early: u64,
    unexplained: u64,
    stuck: u64,
    violations: u64,
    duplicates: u64,
    /// The largest ones.
    late_p99: u64,
    late_max: u64,
    seconds: f64,
}

impl Totals {
    fn add(&mut self, record: &Record) {
        self.slices += 1;
        self.bad += u32::from(!record.is_good());
        for (all, one) in [
            (&mut self.jobs, record.jobs),
            (&mut self.kills, record.kills),
            (&mut self.server_kills, record.server_kills),
            (&mut self.frozen, record.frozen),
            (&mut self.harmed, record.harmed),
            (&mut self.changes, record.changes),
            (&mut self.hits, record.hits),
            (&mut self.lost, record.lost),
            (&mut self.early, record.early),
            (&mut self.unexplained, record.unexplained),
            (&mut self.stuck, record.stuck),
            (&mut self.violations, record.violations),
            (&mut self.duplicates, record.duplicates),
        ] {
            *all += one;
        }
        self.late_p99 = self.late_p99.max(record.late_p99);
        self.late_max = self.late_max.max(record.late_max);
        self.seconds += record.seconds;
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} slices, {} of them not valid; {} jobs, {} kills ({} of servers), {} stops, {} cuts and other harm, {} changes \
             of shards; {} hits; lost {}, early {}, unexplained {}, stuck {}, other violations {}; {} duplicates explained; \
             lateness at most p99 {} ms, max {} ms; {:.2} h",
            self.slices,
            self.bad,
            self.jobs,
            self.kills,
            self.server_kills,
            self.frozen,
            self.harmed,
            self.changes,
            self.hits,
            self.lost,
            self.early,
            self.unexplained,
            self.stuck,
            self.violations.saturating_sub(self.lost + self.early + self.unexplained + self.stuck),
            self.duplicates,
            self.late_p99,
            self.late_max,
            self.seconds / 3_600.0,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use punctual_check::{Duplicated, Violation};

    use super::{
        super::plan::{Asked, Plan},
        *,
    };

    fn plan(folder: &Path, seed: u64) -> (Plan, Vec<Slice>) {
        let asked = Asked { seed: Some(seed), jobs: Some(3_000), slices: Some(3), ..Asked::default() };
        let plan = Plan::of(folder, &asked).expect("a plan");
        let slices = plan.draw();
        (plan, slices)
    }

    fn record(marathon: u64, slice: &Slice, verdict: Result<&Verdict, &str>) -> Record {
        let about =
            About { date: "2026-11-27T00:00:00Z", commit: "abc", marathon, of: 3, slice, seconds: 12.34 };
        Record::new(about, verdict)
    }

    fn verdict(word: Word) -> Verdict {
        Verdict {
            verdict: word,
            acked: 1_000,
            kills: 8,
            server_kills: 2,
            frozen: 1,
            hits: 9,
            lost: 1,
            duplicated: Duplicated { explained: 5, unexplained: 2, budget: 90 },
            lateness_ms: Lateness { runs: 1_000, p50: 2, p99: 30, max: 400 },
            rules: [("D1", 1), ("D5", 2), ("D8", 4)].into(),
            violations: vec![Violation { rule: "D1", id: None, detail: "is gone".to_owned() }],
            ..Verdict::default()
        }
    }

    #[test]
    fn a_marathon_goes_on_after_the_last_whole_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let (plan, slices) = plan(folder.path(), 1);
        let good = Verdict { verdict: Word::Valid, ..Verdict::default() };
        let mut ledger = Ledger::open(folder.path(), plan.seed, &slices).expect("a new ledger");
        assert_eq!(ledger.records, []);
        for slice in &slices[..2] {
            ledger.add(record(plan.seed, slice, Ok(&good))).expect("a line");
        }
        let written = ledger.records;
        let file = folder.path().join(FILE);
        let text = fs::read(&file).expect("the ledger");
        // Cut off anywhere, it has whole lines only.
        let first_line = text.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        for length in [text.len(), text.len() - 1, first_line + 1, first_line, first_line - 1, 1, 0] {
            fs::write(&file, &text[..length]).expect("a file");
            let whole = text[..length]
                .split_inclusive(|byte| *byte == b'\n')
                .filter(|line| line.ends_with(b"\n"))
                .count();
            let mut ledger = Ledger::open(folder.path(), plan.seed, &slices).expect("a ledger");
            assert_eq!(ledger.records, written[..whole], "{length} bytes");
            ledger.add(record(plan.seed, &slices[whole], Ok(&good))).expect("a line");
            let again = Ledger::open(folder.path(), plan.seed, &slices).expect("a ledger");
            assert_eq!(again.records.len(), whole + 1, "{length} bytes");
        }
    }

    #[test]
    fn a_ledger_of_another_plan_or_with_a_line_that_is_none_is_refused() {
        let (folder, other) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (plan_here, slices) = plan(folder.path(), 1);
        let (plan_there, others) = plan(other.path(), 2);
        let mut ledger = Ledger::open(folder.path(), plan_here.seed, &slices).expect("a new ledger");
        ledger.add(record(plan_here.seed, &slices[0], Err("away"))).expect("a line");
        assert!(Ledger::open(folder.path(), plan_here.seed, &slices).is_ok());
        assert!(Ledger::open(folder.path(), plan_there.seed, &others).is_err(), "other seeds");
        assert!(Ledger::open(folder.path(), plan_here.seed, &slices[1..]).is_err(), "other numbers");
        assert!(Ledger::open(folder.path(), plan_here.seed, &[]).is_err(), "fewer slices");
        fs::write(folder.path().join(FILE), "{}\n").expect("a file");
        let refused =
            Ledger::open(folder.path(), plan_here.seed, &slices).expect_err("no record").to_string();
        assert!(refused.contains("line 1"), "{refused}");
    }

    #[test]
    fn totals_add_up_what_slices_say_and_keep_the_worst() {
        let folder = tempfile::tempdir().expect("a folder");
        let (plan, slices) = plan(folder.path(), 1);
        let mut ledger = Ledger::open(folder.path(), plan.seed, &slices).expect("a new ledger");
        ledger.add(record(plan.seed, &slices[0], Ok(&verdict(Word::Invalid)))).expect("a line");
        ledger.add(record(plan.seed, &slices[1], Ok(&verdict(Word::Valid)))).expect("a line");
        ledger.add(record(plan.seed, &slices[2], Err("no server"))).expect("a line");
        let totals = ledger.totals();
        assert_eq!((totals.slices, totals.bad, totals.jobs), (3, 2, 2_000));
        assert_eq!((totals.kills, totals.server_kills, totals.frozen, totals.hits), (20, 4, 2, 18));
        assert_eq!((totals.lost, totals.unexplained, totals.stuck, totals.duplicates), (2, 4, 8, 10));
        assert_eq!((totals.late_p99, totals.late_max), (30, 400));
        assert!((totals.seconds - 36.9).abs() < 0.01, "{}", totals.seconds);
        let [bad, good, failed] = &ledger.records[..] else { panic!("three records") };
        assert!(!bad.is_good() && good.is_good() && !failed.is_good());
        assert_eq!(bad.seen.as_deref(), Some("D1: is gone"));
        assert_eq!((good.seen.as_deref(), failed.seen.as_deref()), (None, Some("no server")));
        let repeat = bad.repeat.as_deref().unwrap_or_default();
        assert!(repeat.starts_with("punctual-chaos slice --seed"), "{repeat}");
    }
}
