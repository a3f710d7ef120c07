//! The exploration: a scope as a model of `stateright`, which visits every state once, the nearest first.

use std::{
    num::NonZeroUsize,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::{
    broken::Broken,
    drain::drain,
    event::{Event, Met},
    rule::Rule,
    scope::Scope,
    world::{Step, World},
};

/// The most states of one exploration, counted each time that they are reached.
pub const STATES_MAX: usize = 400_000_000;

/// The most steps from the beginning to a state.
const DEPTH_MAX: usize = 200;

/// The most lines of a story.
pub const STORY_LINES_MAX: usize = 12;

/// A scope to explore, and the bug of its store.
#[derive(Debug)]
pub struct Explorer {
    scope: Scope,
    broken: Option<Broken>,
    met: Met,
    /// A bit per rule that was found broken. stateright keeps the last counterexample of a property, and the first one is
    /// the shortest.
    found: AtomicU32,
}

impl Explorer {
    /// Returns `false` for the first state that breaks a rule.
    fn keeps(&self, rule: Rule, is_kept: bool) -> bool {
        let bit = 1 << rule as u32;
        is_kept || self.found.fetch_or(bit, Ordering::Relaxed) & bit != 0
    }
}

macro_rules! properties {
    ($($rule:ident),*) => {
        vec![
            $(Property::always(Rule::$rule.name(), |explorer: &Explorer, world: &World| {
                let is_kept = world.broke.as_ref().is_none_or(|broke| broke.rule != Rule::$rule);
                explorer.keeps(Rule::$rule, is_kept)
            }),)*
            Property::always(Rule::Ends.name(), |explorer: &Explorer, world: &World| {
                let is_kept = world.broke.is_some() || drain(world, &explorer.scope).is_ok();
                explorer.keeps(Rule::Ends, is_kept)
            }),
        ]
    };
}

impl Model for Explorer {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.scope, self.broken)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(&self.scope, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        world.step(&self.scope, step);
        self.met.note(world.events);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties![
            OneLease,
            NeverEarly,
            Limits,
            EndedStays,
            AnswersHold,
            Attempts,
            Counts,
            Fenced,
            Once,
            UniqueKey,
            LeaseTime,
            Starts,
            Wakes,
            Order
        ]
    }
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The scope.
    pub scope: &'static str,
    /// States that were reached, counted each time.
    pub reached: usize,
    /// Different states.
    pub unique: usize,
    /// The most steps from the beginning to a state.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Whether every state was visited.
    pub is_complete: bool,
    /// What was met.
    pub met: Vec<Event>,
    /// For each broken rule, the shortest story that breaks it.
    pub stories: Vec<(&'static str, Vec<String>)>,
}

/// Explores a scope with a number of threads. With one, a story is the shortest one.
///
/// `until`: the rule whose first counterexample ends the exploration.
/// `states`: how many states to reach at most, up to [`STATES_MAX`].
pub fn explore(
    scope: &Scope,
    broken: Option<Broken>,
    until: Option<Rule>,
    threads: NonZeroUsize,
    states: usize,
) -> Found {
    let begin = Instant::now();
    let states = states.clamp(1, STATES_MAX);
    let explorer = Explorer { scope: scope.clone(), broken, met: Met::default(), found: AtomicU32::new(0) };
    let enough =
        until.map_or(HasDiscoveries::AnyFailures, |rule| HasDiscoveries::AnyOf([rule.name()].into()));
    let checker = explorer
        .checker()
        .threads(threads.get())
        .target_state_count(states)
        .target_max_depth(DEPTH_MAX)
        .finish_when(enough)
        .spawn_bfs()
        .join();
    let mut stories: Vec<_> = checker
        .discoveries()
        .into_iter()
        .map(|(rule, path)| {
            let worlds: Vec<World> = path.into_vec().into_iter().map(|(world, _)| world).collect();
            (rule, story(scope, &worlds))
        })
        .collect();
    stories.sort();
    let (reached, depth) = (checker.state_count(), checker.max_depth());
    Found {
        scope: scope.name,
        reached,
        unique: checker.unique_state_count(),
        depth,
        took: begin.elapsed(),
        is_complete: stories.is_empty() && reached < states && depth < DEPTH_MAX,
        met: checker.model().met.list(),
        stories,
    }
}

/// Returns a line per step, and one for what is wrong at the end.
fn story(scope: &Scope, worlds: &[World]) -> Vec<String> {
    let mut lines: Vec<String> = worlds.iter().skip(1).map(|world| world.said.clone()).collect();
    if let Some(last) = worlds.last() {
        let broke = last.broke.clone().or_else(|| drain(last, scope).err());
        lines.extend(broke.map(|broke| broke.to_string()));
    }
    lines
}
