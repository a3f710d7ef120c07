//! The real binary, driven as people and scripts drive it: each test in a folder and on a store of its own.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod act;
#[cfg(target_os = "linux")]
mod attacks;
mod batch;
mod compact;
mod configuration;
mod cron;
#[cfg(unix)]
mod demo;
mod errors;
#[cfg(unix)]
mod exec;
mod fixture;
#[cfg(unix)]
mod forward;
#[cfg(unix)]
mod greedy;
#[cfg(unix)]
mod health;
#[cfg(unix)]
mod import;
#[cfg(target_os = "linux")]
mod instructions;
#[cfg(target_os = "linux")]
mod keep;
#[cfg(target_os = "linux")]
mod leave;
#[cfg(unix)]
mod listen;
#[cfg(unix)]
mod lock;
mod look;
mod man;
#[cfg(unix)]
mod mcp;
#[cfg(unix)]
mod monitoring;
#[cfg(unix)]
mod outage;
#[cfg(unix)]
mod prometheus;
#[cfg(unix)]
mod proxies;
mod push;
mod queue;
mod recover;
#[cfg(unix)]
mod redis;
#[cfg(unix)]
mod serve;
#[cfg(unix)]
mod server_page;
#[cfg(target_os = "linux")]
mod stderr;
mod take;
mod token;
mod tool;
mod topic;
#[cfg(unix)]
mod traces;
#[cfg(unix)]
mod versions;
#[cfg(unix)]
mod work;
#[cfg(unix)]
mod worker;
