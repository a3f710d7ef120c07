//! The plan of a marathon: how its jobs and kills split into slices, each with a seed of its own. All of it is drawn from one seed,
//! so that a marathon that goes on later has the same slices.

use std::{fs, io::Write as _, path::Path};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::drill::Outcome;

/// The file in the folder of a marathon.
const FILE: &str = "plan.json";
/// Of plans that are drawn alike. A marathon is not gone on with by another version.
const VERSION: u32 = 1;
/// Jobs of a slice unless the command line says how many slices there are.
const JOBS_PER_SLICE: u32 = 10_000;
/// The least jobs of a slice: fewer would be done before a fault hits.
const JOBS_MIN: u32 = 300;
const SLICES_MAX: u32 = 10_000;
/// The most jobs and the most kills of a slice.
const SLICE_JOBS_MAX: u32 = 100_000;
const SLICE_KILLS_MAX: u32 = 200;
/// Neighbouring slices differ by up to half of this share: jobs, and kills, of a slice are the even share and up to a fourth more or
/// less.
const SHIFT: u32 = 4;

/// Where the jobs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreKind {
    /// A file of SQLite; in every other slice behind a server of punctual.
    File,
    /// A server of Redis that syncs each write.
    Redis,
    /// A primary with two replicas, and sentinels; each write is on a replica.
    Sentinel,
    /// A cluster of three primaries with two replicas each; each write is on a replica.
    Cluster,
}

impl StoreKind {
    const ALL: [Self; 4] = [Self::File, Self::Redis, Self::Sentinel, Self::Cluster];

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Redis => "redis",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.text() == text);
        known.ok_or_else(|| format!("{text:?} is no store: file, redis, sentinel or cluster"))
    }
}

/// What the command line asks for; what it does not say is as the plan in the folder says, or as usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) store: Option<StoreKind>,
    pub(crate) seed: Option<u64>,
    pub(crate) jobs: Option<u32>,
    pub(crate) kills: Option<u32>,
    pub(crate) slices: Option<u32>,
}

/// All that the slices are drawn from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    version: u32,
    pub(crate) store: StoreKind,
    pub(crate) seed: u64,
    pub(crate) jobs: u32,
    pub(crate) kills: u32,
    pub(crate) slices: u32,
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// From 1.
    pub(crate) number: u32,
    pub(crate) store: StoreKind,
    pub(crate) seed: u64,
    pub(crate) jobs: u32,
    pub(crate) kills: u32,
    /// Whether a server of punctual stands before its file.
    is_over_http: bool,
}

impl Slice {
    /// The words after `punctual-chaos` that run it alone.
    pub(crate) fn command(&self) -> Vec<String> {
        let mut words = vec!["slice".to_owned()];
        for (name, number) in
            [("--seed", self.seed), ("--jobs", self.jobs.into()), ("--kills", self.kills.into())]
        {
            words.extend([name.to_owned(), number.to_string()]);
        }
        words.extend(match self.store {
            StoreKind::File => self.is_over_http.then(|| "--http".to_owned()),
            StoreKind::Redis => Some("--redis".to_owned()),
            StoreKind::Sentinel => Some("--sentinel".to_owned()),
            StoreKind::Cluster => Some("--cluster".to_owned()),
        });
        words
    }

    /// The name of its folder.
    pub(crate) fn folder(&self) -> String {
        format!("slice-{:04}", self.number)
    }
}

impl Plan {
    /// The plan in the folder, which must be what is asked for; a new one, which is written there, if it has none.
    pub(crate) fn of(folder: &Path, asked: &Asked) -> Outcome<Self> {
        let file = folder.join(FILE);
        let plan = match fs::read(&file) {
            Ok(bytes) => {
                let plan: Self = serde_json::from_slice(&bytes)
                    .map_err(|error| format!("{} is no plan of a marathon: {error}", file.display()))?;
                plan.is_as(asked, &file)?;
                plan
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let plan = Self::new(asked);
                plan.check()?;
                plan.write(folder)?;
                plan
            }
            Err(error) => return Err(format!("cannot read {}: {error}", file.display()).into()),
        };
        plan.check()?;
        Ok(plan)
    }

    fn new(asked: &Asked) -> Self {
        let jobs = asked.jobs.unwrap_or(1_000_000);
        Self {
            version: VERSION,
            store: asked.store.unwrap_or(StoreKind::File),
            // Short enough for people, and for programs that read each number as a float.
            seed: asked.seed.unwrap_or_else(|| fastrand::u32(..).into()),
            jobs,
            kills: asked.kills.unwrap_or((jobs / 1_000).max(1)),
            slices: asked.slices.unwrap_or_else(|| jobs.div_ceil(JOBS_PER_SLICE).max(1)),
        }
    }

    fn check(&self) -> Result<(), String> {
        let Self { version, jobs, kills, slices, .. } = *self;
        if version != VERSION {
            return Err(format!(
                "the plan is of version {version}, and this program draws version {VERSION}: use another folder"
            ));
        }
        if !(1..=SLICES_MAX).contains(&slices) {
            return Err(format!("a marathon has 1 to {SLICES_MAX} slices, and not {slices}"));
        }
        if jobs / slices < JOBS_MIN || SLICE_JOBS_MAX < jobs.div_ceil(slices) {
            return Err(format!(
                "a slice has {JOBS_MIN} to {SLICE_JOBS_MAX} jobs, and not {}: change --jobs or --slices",
                jobs / slices
            ));
        }
        if SLICE_KILLS_MAX < kills.div_ceil(slices) {
            return Err(format!(
                "a slice has at most {SLICE_KILLS_MAX} kills, and not {}: change --kills or --slices",
                kills.div_ceil(slices)
            ));
        }
        Ok(())
    }

    /// Whether it is what the command line says.
    fn is_as(&self, asked: &Asked, file: &Path) -> Result<(), String> {
        let differs = |name: &str, has: &dyn std::fmt::Display, asked: &dyn std::fmt::Display| {
            format!(
                "{} has --{name} {has}, and the command line says {asked}: leave it out to go on, or use another folder",
                file.display()
            )
        };
        if let Some(store) = asked.store.filter(|store| *store != self.store) {
            return Err(differs("store", &self.store.text(), &store.text()));
        }
        for (name, has, asked) in [
            ("seed", self.seed, asked.seed),
            ("jobs", self.jobs.into(), asked.jobs.map(u64::from)),
            ("kills", self.kills.into(), asked.kills.map(u64::from)),
            ("slices", self.slices.into(), asked.slices.map(u64::from)),
        ] {
            if let Some(asked) = asked.filter(|asked| *asked != has) {
                return Err(differs(name, &has, &asked));
            }
        }
        Ok(())
    }

    /// All of it or nothing, whatever happens meanwhile.
    fn write(&self, folder: &Path) -> Outcome<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(folder.join(FILE))?;
        Ok(fs::File::open(folder)?.sync_all()?)
    }

    /// The slices, in order.
    pub(crate) fn draw(&self) -> Vec<Slice> {
        let mut rng = Rng::with_seed(self.seed);
        let jobs = split(self.jobs, self.slices, &mut rng);
        let kills = split(self.kills, self.slices, &mut rng);
        (1..)
            .zip(jobs.into_iter().zip(kills))
            .map(|(number, (jobs, kills))| Slice {
                number,
                store: self.store,
                seed: rng.u32(..).into(),
                jobs,
                kills,
                is_over_http: self.store == StoreKind::File && number % 2 == 0,
            })
            .collect()
    }
}

/// Splits a number into so many parts, about even ones.
fn split(whole: u32, parts: u32, rng: &mut Rng) -> Vec<u32> {
    let (even, rest) = (whole / parts, whole % parts);
    let mut all: Vec<u32> = (0..parts).map(|at| even + u32::from(at < rest)).collect();
    for pair in all.chunks_exact_mut(2) {
        let shift = rng.u32(..=even / SHIFT);
        let (less, more) = if rng.bool() { (0, 1) } else { (1, 0) };
        pair[less] -= shift;
        pair[more] += shift;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    fn asked(seed: u64) -> Asked {
        Asked {
            store: Some(StoreKind::Redis),
            seed: Some(seed),
            jobs: Some(100_000),
            kills: Some(103),
            slices: Some(10),
        }
    }

    #[test]
    fn slices_have_all_jobs_and_kills_and_seeds_of_their_own() {
        for seed in 0..100 {
            let slices = Plan::new(&asked(seed)).draw();
            assert_eq!(slices, Plan::new(&asked(seed)).draw(), "one seed, one plan");
            assert_eq!(slices.iter().map(|slice| slice.jobs).sum::<u32>(), 100_000);
            assert_eq!(slices.iter().map(|slice| slice.kills).sum::<u32>(), 103);
            assert!(slices.iter().all(|slice| (7_500..=12_500).contains(&slice.jobs)));
            assert!(slices.iter().all(|slice| (8..=13).contains(&slice.kills)));
            let seeds: std::collections::BTreeSet<u64> = slices.iter().map(|slice| slice.seed).collect();
            assert_eq!(seeds.len(), 10);
            let numbers: Vec<u32> = slices.iter().map(|slice| slice.number).collect();
            assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
        }
        assert_ne!(Plan::new(&asked(1)).draw(), Plan::new(&asked(2)).draw());
    }

    /// Else a marathon that goes on would refuse its own ledger: change the version, and the seeds here and in tests/chaos.rs.
    #[test]
    fn a_version_draws_the_same_slices_for_ever() {
        let asked = Asked { jobs: Some(900), kills: None, slices: Some(3), ..asked(7) };
        let slices = Plan::new(&asked).draw();
        let drawn: Vec<_> = slices.iter().map(|slice| (slice.seed, slice.jobs, slice.kills)).collect();
        assert_eq!(
            (VERSION, drawn),
            (1, vec![(4_190_879_020, 267, 1), (954_197_257, 333, 0), (53_565_021, 300, 0)])
        );
    }

    #[test]
    fn the_command_of_a_slice_runs_that_slice() {
        for store in StoreKind::ALL {
            for slice in Plan::new(&Asked { store: Some(store), ..asked(7) }).draw() {
                let profile = Profile::parse(&slice.command()).expect("the program knows its own words");
                assert_eq!(
                    (profile.seed, profile.jobs, profile.kills),
                    (slice.seed, slice.jobs, slice.kills)
                );
            }
        }
    }

    #[test]
    fn a_plan_is_gone_on_with_only_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Plan::of(folder.path(), &asked(7)).expect("a new plan");
        for same in [asked(7), Asked::default(), Asked { seed: Some(7), ..Asked::default() }] {
            assert_eq!(Plan::of(folder.path(), &same).expect("the same plan"), first);
        }
        for (other, name) in [
            (Asked { seed: Some(8), ..Asked::default() }, "--seed 7"),
            (Asked { store: Some(StoreKind::File), ..Asked::default() }, "--store redis"),
            (Asked { jobs: Some(99_999), ..Asked::default() }, "--jobs 100000"),
            (Asked { kills: Some(1), ..Asked::default() }, "--kills 103"),
            (Asked { slices: Some(11), ..Asked::default() }, "--slices 10"),
        ] {
            let refused = Plan::of(folder.path(), &other).expect_err("another plan").to_string();
            assert!(refused.contains(name), "{refused}");
        }
        fs::write(folder.path().join(FILE), "{\"version\":1").expect("a file");
        assert!(Plan::of(folder.path(), &Asked::default()).is_err(), "half a plan is none");
    }

    #[test]
    fn a_plan_that_shows_nothing_or_never_ends_is_refused() {
        for (jobs, kills, slices) in [
            (1_000, 10, 0),
            (1_000, 10, 10),
            (u32::MAX, 10, 10),
            (100_000, 10_000, 10),
            (u32::MAX, 10, SLICES_MAX + 1),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let asked = Asked { jobs: Some(jobs), kills: Some(kills), slices: Some(slices), ..asked(1) };
            assert!(Plan::of(folder.path(), &asked).is_err(), "{jobs} {kills} {slices}");
            assert!(!folder.path().join(FILE).exists());
        }
    }
}
