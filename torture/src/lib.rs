//! The torture test: real processes around real databases and a real broker, faults from a seeded plan, a history of everything that
//! anybody saw, and a checker that decides.
//!
//! ```text
//! plan ──► world ──► roles (writer, relay, reader), the command `outbox`, servers
//!            │                    │
//!            └──── history ◄──────┘ ──► checker ◄── state (what the database says in the end)
//!                                          │
//!                                        report
//! ```
//!
//! | room | what it knows |
//! | --- | --- |
//! | [`plan`] | which fault when, from a seed: the same seed is the same plan |
//! | [`faults`] | what can be done to them |
//! | [`world`] | starts and ends everything, does what the plan says |
//! | [`roles`] | what the processes do |
//! | [`work`] | which events are written, and what should become of each |
//! | [`poison`] | hostile rows, as any program can insert them |
//! | [`receiver`] | a receiver of webhooks that can misbehave |
//! | [`integrity`] | whether the database's own files are whole |
//! | [`history`] | what happened, a line for each thing, by one clock |
//! | [`state`] | what the database says in the end |
//! | [`checker`] | a pure function of history and state: everything that must not have happened, with the lines that prove it |
//! | [`report`] | the table at the end |

pub mod arena;
pub mod checker;
pub mod clock;
pub mod database;
pub mod faults;
pub mod guard;
pub mod history;
pub mod integrity;
pub mod plan;
pub mod poison;
pub mod receiver;
pub mod report;
pub mod roles;
pub mod servers;
pub mod state;
pub mod work;
pub mod world;
