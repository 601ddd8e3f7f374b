//! Health of a relay on one database: its last successes and current errors.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use crate::escape::Escaped;

/// A background task of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RelayTask {
    /// Takes due events from the table.
    Take,
    /// Writes the outcomes of deliveries.
    Settle,
    /// Renews leases, or the leadership of the table.
    Renew,
    /// Calls handlers and publishers.
    Dispatch,
    /// Publishes the log.
    LogRelay,
    /// Waits for notifications of new events.
    Watch,
    /// Waits for notifications of appends to the log.
    LogWatch,
    /// Writes the presence row of a relay.
    Announce,
    /// Releases the leases of relays that vanished.
    Takeover,
    /// Deletes rows whose retention has expired.
    Purge,
    /// Serves the databases of a fleet.
    Fleet,
    /// A task that this version does not know.
    #[serde(other)]
    Other,
}

impl RelayTask {
    /// Name in JSON, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Settle => "settle",
            Self::Renew => "renew",
            Self::Dispatch => "dispatch",
            Self::LogRelay => "log_relay",
            Self::Watch => "watch",
            Self::LogWatch => "log_watch",
            Self::Announce => "announce",
            Self::Takeover => "takeover",
            Self::Purge => "purge",
            Self::Fleet => "fleet",
            Self::Other => "other",
        }
    }

    /// The operation that fails, for the sentence "has failed to …".
    fn verb(self) -> &'static str {
        match self {
            Self::Take => "take events",
            Self::Settle => "settle events",
            Self::Renew => "renew its leases",
            Self::Dispatch => "dispatch events",
            Self::LogRelay => "publish the log",
            Self::Watch => "listen for new events",
            Self::LogWatch => "listen for appends to the log",
            Self::Announce => "announce itself",
            Self::Takeover => "release leases of vanished relays",
            Self::Purge => "purge old rows",
            Self::Fleet => "serve the fleet",
            Self::Other => "run a task",
        }
    }

    /// Whether events stay undelivered while the task fails. Without the other tasks a relay polls,
    /// or deletes nothing.
    pub fn is_essential(self) -> bool {
        matches!(
            self,
            Self::Take | Self::Settle | Self::Renew | Self::Dispatch | Self::LogRelay | Self::Fleet
        )
    }
}

impl fmt::Display for RelayTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Current error of a relay's task. Cleared by the next success.
///
/// Its `Display` continues a sentence that begins with the relay: "has failed to take events since
/// …: …".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskError {
    /// The failing task.
    pub task: RelayTask,
    /// Time of the first failure since the last success, by the clock of the relay.
    pub since: DateTime<Utc>,
    /// The latest error: one line, without credentials.
    pub error: String,
    /// Number of failures since the last success.
    pub failures: u64,
}

impl TaskError {
    /// Failures in a row from which an error counts as lasting. A single error may be transient: a
    /// deadlock, a lost connection.
    const LASTING: u64 = 3;

    /// An error that has occurred this often.
    pub fn new(task: RelayTask, since: DateTime<Utc>, error: &str, failures: u64) -> Self {
        Self { task, since, error: one_line(error), failures }
    }

    /// Whether the task has failed three times or more since its last success, or hangs.
    pub fn is_lasting(&self) -> bool {
        self.failures >= Self::LASTING
    }

    /// Error of a call that has not returned: as severe as a lasting error.
    pub(crate) fn stalled(task: RelayTask, since: DateTime<Utc>, error: &str) -> Self {
        Self::new(task, since, error, Self::LASTING)
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.since.to_rfc3339_opts(SecondsFormat::Secs, true);
        write!(f, "has failed to {} since {since}: {}", self.task.verb(), self.error)
    }
}

/// Maximum length of a kept error, in characters.
const MOST: usize = 500;

/// The first line of an error, escaped because it may quote text from rows, and truncated.
fn one_line(error: &str) -> String {
    let line = error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason was given");
    Escaped(line.trim_end_matches('.')).to_string().chars().take(MOST).collect()
}

/// Health of a relay on one database. From [`Relay::health`](crate::Relay::health), and in
/// [`NodeState::health`](super::NodeState::health) for every relay that runs.
///
/// ```
/// use outbox::store::NodeState;
///
/// // A relay of an older version does not report its health.
/// let state: NodeState = serde_json::from_str(r#"{"mode":"ordered","version":"0.1.0","active":true}"#)?;
/// assert_eq!(state.health.problems().count(), 0);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RelayHealth {
    /// Time of the last take that the database completed, whether it found events or not.
    pub last_take: Option<DateTime<Utc>>,
    /// Time of the last settlement that the database completed.
    pub last_settlement: Option<DateTime<Utc>>,
    /// Current errors, at most one for each task.
    pub errors: Vec<TaskError>,
    /// Time of the last successful publish of each destination.
    pub published: BTreeMap<String, DateTime<Utc>>,
    /// Why the relay has ended, if it has.
    pub ended: Option<String>,
}

impl RelayHealth {
    /// Maximum number of destinations in `published`.
    pub(crate) const DESTINATIONS: usize = 100;

    /// Lasting errors that keep events from being delivered.
    pub fn problems(&self) -> impl Iterator<Item = &TaskError> {
        self.errors.iter().filter(|error| error.task.is_essential() && error.is_lasting())
    }

    /// The lasting error of a task.
    pub fn problem(&self, task: RelayTask) -> Option<&TaskError> {
        self.problems().find(|error| error.task == task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(task: RelayTask, failures: u64) -> TaskError {
        let since = DateTime::from_timestamp(1_800_000_000, 0).expect("a time");
        TaskError::new(task, since, "\nno such column: due.\nSELECT …", failures)
    }

    #[test]
    fn an_error_is_shown_as_one_line_that_names_the_operation() {
        let shown = error(RelayTask::Take, 1).to_string();
        assert_eq!(shown, "has failed to take events since 2027-01-15T08:00:00Z: no such column: due");
    }

    #[test]
    fn only_lasting_errors_of_essential_tasks_are_problems() {
        let errors = vec![error(RelayTask::Take, 2), error(RelayTask::Settle, 3), error(RelayTask::Purge, 9)];
        let health = RelayHealth { errors, ..RelayHealth::default() };
        let problems: Vec<RelayTask> = health.problems().map(|error| error.task).collect();
        assert_eq!(problems, [RelayTask::Settle]);
    }

    #[test]
    fn a_task_of_a_newer_version_is_read_as_another() {
        let stored = r#"{"task":"defragment","since":"2026-01-31T12:00:00Z","error":"no","failures":1}"#;
        let stored: TaskError = serde_json::from_str(stored).expect("decodes");
        assert_eq!(stored.task, RelayTask::Other);
        let all = [RelayTask::Take, RelayTask::LogRelay, RelayTask::LogWatch];
        for task in all {
            assert_eq!(serde_json::to_value(task).expect("a name"), task.as_str());
        }
    }
}
