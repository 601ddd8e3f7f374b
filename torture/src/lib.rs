//! The torture test runs real processes against real databases and a real broker, injects faults
//! from a seeded plan, records a history of everything the processes saw, and checks that history.
//!
//! ```text
//! plan ──► world ──► roles (writer, relay, reader), the command `outbox`, servers
//!            │                    │
//!            └──── history ◄──────┘ ──► checker ◄── state (the database at the end)
//!                                          │
//!                                        report
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`plan`] | the schedule of faults; the same seed gives the same plan |
//! | [`faults`] | the kinds of faults |
//! | [`world`] | starts and stops everything; its nemesis injects the faults of the plan |
//! | [`roles`] | the code that each process runs |
//! | [`work`] | the events that are written, and the expected outcome of each |
//! | [`poison`] | hostile rows, inserted by plain SQL |
//! | [`receiver`] | a webhook receiver that can misbehave |
//! | [`integrity`] | checks the database's own files for damage |
//! | [`history`] | every operation, one line of JSON each, by one clock |
//! | [`state`] | the tables at the end of the run |
//! | [`checker`] | finds violations, a pure function of history and state |
//! | [`report`] | the summary table |

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
