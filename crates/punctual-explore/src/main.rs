//! Explores a scope, and prints how many states it has and whether each keeps all rules.
//!
//! Exit codes: 0 if every state keeps all rules (or a broken twin was found broken), 1 if not, 2 for wrong usage, 3 if a
//! bound was reached before all states were visited.

use std::{num::NonZeroUsize, process::ExitCode};

use clap::Parser;
use punctual_explore::{Broken, Found, STATES_MAX, Scope, explore};
use serde_json::{Value, json};

/// Explore the model of punctual exhaustively in small scopes
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Scope to explore
    #[arg(long, value_name = "NAME", default_value = "pair")]
    scope: String,
    /// Explore all scopes, one after the other
    #[arg(long, conflicts_with_all = ["scope", "broken"])]
    all: bool,
    /// Explore a store with this deliberate bug, in the scope that shows it
    #[arg(long, value_name = "NAME", conflicts_with = "scope")]
    broken: Option<String>,
    /// Threads; with one, a story is the shortest one
    #[arg(long, value_name = "N", default_value = "1")]
    threads: NonZeroUsize,
    /// Most states to reach, counted each time
    #[arg(long, value_name = "N", default_value_t = STATES_MAX)]
    states: usize,
    /// List the scopes and broken twins
    #[arg(long)]
    list: bool,
    /// Print JSON, one line per exploration
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        list(args.json);
        return ExitCode::SUCCESS;
    }
    if let Some(name) = &args.broken {
        let Some(broken) = Broken::named(name) else { return unknown("broken twin", name) };
        let Some(scope) = Scope::named(broken.scope()) else { return unknown("scope", broken.scope()) };
        let found = explore(&scope, Some(broken), Some(broken.rule()), args.threads, args.states);
        print(&args, &found);
        return ExitCode::from(u8::from(found.stories.is_empty()));
    }
    let scopes = if args.all {
        Scope::all()
    } else {
        let Some(scope) = Scope::named(&args.scope) else { return unknown("scope", &args.scope) };
        vec![scope]
    };
    let mut code = 0;
    for scope in &scopes {
        let found = explore(scope, None, None, args.threads, args.states);
        print(&args, &found);
        code = match (found.stories.is_empty(), found.is_complete) {
            (false, _) => 1,
            (true, false) if code == 0 => 3,
            _ => code,
        };
    }
    ExitCode::from(code)
}

fn unknown(what: &str, name: &str) -> ExitCode {
    eprintln!("punctual-explore: there is no {what} {name:?}; see --list");
    ExitCode::from(2)
}

fn list(as_json: bool) {
    if as_json {
        let scopes: Vec<Value> =
            Scope::all().iter().map(|scope| json!({ "name": scope.name, "about": scope.about })).collect();
        let broken: Vec<Value> = Broken::ALL
            .iter()
            .map(|broken| json!({ "name": broken.name(), "scope": broken.scope(), "rule": broken.rule().name() }))
            .collect();
        println!("{}", json!({ "scopes": scopes, "broken": broken }));
        return;
    }
    println!("scopes");
    for scope in Scope::all() {
        println!("  {:<12}{}", scope.name, scope.about);
    }
    println!("broken twins, their scopes, and the rules that they break");
    for broken in Broken::ALL {
        println!("  {:<24}{:<12}{}", broken.name(), broken.scope(), broken.rule().name());
    }
}

fn print(args: &Args, found: &Found) {
    let Found { scope, reached, unique, depth, took, is_complete, met, stories } = found;
    if args.json {
        let stories: Vec<Value> =
            stories.iter().map(|(rule, lines)| json!({ "rule": rule, "story": lines })).collect();
        let met: Vec<String> = met.iter().map(|event| format!("{event:?}")).collect();
        let line = json!({
            "scope": scope, "reached": reached, "unique": unique, "depth": depth, "complete": is_complete,
            "took_ms": took.as_millis() as u64, "met": met, "broken": stories,
        });
        println!("{line}");
        return;
    }
    let complete = if *is_complete { "all states" } else { "not all states" };
    println!(
        "{scope}: {unique} states, reached {reached} times, depth {depth}, {complete}, {:.1} s",
        took.as_secs_f64()
    );
    for (rule, lines) in stories {
        println!("\n{rule}");
        for (i, line) in lines.iter().enumerate() {
            println!("{:>3}  {line}", i + 1);
        }
    }
}
