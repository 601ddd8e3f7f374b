//! Compares the store with a model of it: random histories, compared after every step.
//!
//! The model is a plain list of rows and a few `if`s, so that it is easy to verify by reading. A
//! history of writes, crashes, late settlements, replays and purges must have the same effect on
//! the table and on that list.
//!
//! Two nodes share a store, the third has its own, as relays of two processes do. They lease by
//! rows and by group leases, and continue keys of which they hold events.
//!
//! `OUTBOX_MODEL_CASES` sets the number of histories for each database, `PROPTEST_RNG_SEED` repeats
//! them.

#[path = "common/harness.rs"]
mod harness;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/table.rs"]
mod table;
#[path = "model/world.rs"]
mod world;

use harness::DatabaseHarness;
use proptest::test_runner::{Config, TestRunner};
use steps::history;
use world::World;

fn any_history_has_the_same_effect_on_the_table_and_the_model(
    harness: impl Future<Output = Option<DatabaseHarness>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let Some(harness) = runtime.block_on(harness) else { return };
    let world = std::cell::RefCell::new(runtime.block_on(World::open(harness)));
    let cases = std::env::var("OUTBOX_MODEL_CASES").ok().map_or(64, |n| n.parse().expect("a number"));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&history(), |history| {
            runtime.block_on(world.borrow_mut().run(&history));
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn on_sqlite() {
    any_history_has_the_same_effect_on_the_table_and_the_model(DatabaseHarness::sqlite_memory());
}

#[cfg(feature = "postgres")]
#[test]
fn on_postgres() {
    any_history_has_the_same_effect_on_the_table_and_the_model(DatabaseHarness::postgres());
}

#[cfg(feature = "mysql")]
#[test]
fn on_mariadb() {
    any_history_has_the_same_effect_on_the_table_and_the_model(DatabaseHarness::mariadb());
}

#[cfg(feature = "mysql")]
#[test]
fn on_mysql() {
    any_history_has_the_same_effect_on_the_table_and_the_model(DatabaseHarness::mysql());
}
