//! The settings file: parser and definitions, shared with the command `outbox`. Not part of the
//! stable API.
//!
//! | file | contents |
//! | --- | --- |
//! | `reader`, `mistake`, `fields`, `environment` | reading a file piece by piece, overridden by the environment |
//! | `groups`, `database` | the settings of the library |
//! | `names` | other names of settings |
//! | `mode`, `time`, `age`, `count` | the values |
//! | `check` | checks across several settings |
//!
//! A new setting is a field of its group, a line in `outbox.sample.toml` (checked by a test), and a
//! line in the guide.

mod age;
mod check;
mod count;
mod database;
mod environment;
mod fields;
mod groups;
mod mistake;
mod mode;
mod names;
mod reader;
mod time;

pub use age::Age;
pub use count::{Bytes, Count, Factor};
pub use database::{DatabaseGroup, Scheme, check_name, check_url, url_of_environment, url_or_file};
pub use environment::Environment;
pub use fields::fields;
pub use groups::{
    ClaimLocking, Dispatcher, General, Groups, IdleBackoff, LogGroup, MetricsGroup, Poller, PurgeGroup,
    Retry, WrittenCompletion,
};
pub use mistake::{Mistake, list, no_such, reword};
pub use mode::{MODES, WrittenMode};
pub use names::{OTHER_NAMES, OtherName};
pub use reader::{Reader, plain, variable};
pub use time::Time;

/// The names at the top level of the file that the library reads.
pub const OF_LIBRARY: &[&str] = &[
    "mode",
    "migrate",
    "completion",
    "on-dead",
    "unrouted",
    "database",
    "dispatcher",
    "poller",
    "claim-locking",
    "retry",
    "purge",
    "log",
    "backoff",
    "metrics",
];

/// The names at the top level of the file that only the command `outbox relay` reads.
pub const OF_DAEMON: &[&str] = &["databases", "discovery", "fleet", "http", "publishers", "routes", "topics"];

/// All names at the top level of the file.
pub fn top() -> Vec<&'static str> {
    [OF_LIBRARY, OF_DAEMON].concat()
}
