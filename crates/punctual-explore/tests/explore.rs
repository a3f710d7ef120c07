//! The smallest scope keeps all rules, each broken twin breaks its own, and states that are taken for one behave alike.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroUsize,
};

use punctual_explore::{
    Broken, Event, Rule, STATES_MAX, STORY_LINES_MAX, Scope, explore, outage, world::World,
};

fn scope(name: &str) -> Scope {
    Scope::named(name).unwrap_or_else(|| panic!("there is a scope {name}"))
}

/// With one thread, the numbers and the shortest stories are the same each time.
const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// Another number means that the model, the steps or the hash of a state changed: look which, and whether that was meant.
#[test]
fn every_state_of_the_smallest_scope_keeps_all_rules() {
    let found = explore(&scope("pair"), None, None, ONE, STATES_MAX);
    assert_eq!(found.stories, []);
    assert!(found.is_complete);
    assert_eq!((found.unique, found.reached, found.depth), (10_055, 43_790, 21));
    let met = [Event::Reclaimed, Event::LastAttempt, Event::LateSettle];
    assert_eq!(found.met, met);
}

#[test]
fn each_broken_twin_breaks_its_rule_in_a_short_story() {
    for broken in Broken::ALL {
        let found = explore(&scope(broken.scope()), Some(broken), Some(broken.rule()), ONE, STATES_MAX);
        let story = found.stories.iter().find(|(rule, _)| *rule == broken.rule().name());
        let (_, story) = story.unwrap_or_else(|| panic!("{}: found {:?}", broken.name(), found.stories));
        println!("{}\n  {}\n", broken.name(), story.join("\n  "));
        assert!(story.len() <= STORY_LINES_MAX, "{}: {story:#?}", broken.name());
    }
}

/// A rule that no twin breaks may be one that is never checked.
#[test]
fn each_rule_has_a_broken_twin() {
    let broken: BTreeSet<&str> = Broken::ALL.iter().map(|broken| broken.rule().name()).collect();
    assert_eq!(broken.len(), 15);
}

fn hash(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Random walks that dedupe nothing: what hashes alike must have the same next states, also far from the beginning.
#[test]
fn states_that_hash_alike_have_the_same_next_states() {
    const WALKS: usize = 6;
    const STEPS: usize = 25;
    let mut random = fastrand::Rng::with_seed(1);
    for scope in Scope::all() {
        let mut seen: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut again = 0;
        for _ in 0..WALKS {
            let mut world = World::new(&scope, None);
            for _ in 0..STEPS {
                let mut steps = Vec::new();
                world.steps(&scope, &mut steps);
                let mut next: Vec<World> = Vec::new();
                for step in steps {
                    let mut to = world.clone();
                    to.step(&scope, step);
                    next.push(to);
                }
                let hashes = next.iter().map(hash).collect();
                let first = seen.entry(hash(&world)).or_insert_with(|| BTreeSet::clone(&hashes));
                again += usize::from(*first == hashes);
                assert_eq!(*first, hashes, "{}: {world:#?}", scope.name);
                if next.is_empty() {
                    break;
                }
                world = next.swap_remove(random.usize(..next.len()));
            }
        }
        assert!(seen.len() < again, "{}: no state was met twice", scope.name);
    }
}

/// S9: a store that is away, hangs or sets its clock forward costs no living worker its job, and keeps no dead one's.
#[test]
fn no_outage_costs_a_living_worker_its_job() {
    for lease_ms in [1_008, 2_400, 15_000, 3_600_000] {
        let told = outage::tell_all(lease_ms, 8, false).unwrap_or_else(|(_, broke)| panic!("{broke}"));
        assert!(10_000 < told, "{told}");
    }
}

/// A store that trusts its clock alone runs the job of a living worker twice.
#[test]
fn a_store_that_forgets_its_silences_is_found() {
    let (story, broke) = outage::tell_all(15_000, 8, true).expect_err("an outage that is found");
    assert_eq!((broke.rule, story.killed_ms), (Rule::LeaseTime, None), "{broke}");
}
