//! What the log asks of a database.
//!
//! Two rules hold everywhere:
//! - **Positions are decided from the left.** What [`advance`](LogStore::advance) calls safe is decided: every event up to there
//!   is committed and can be read, and no other will ever appear there. Publishers read no further.
//! - **Every move of a pair is fenced.** It names leader, epoch and the position it moves from; a stale leader moves nothing.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::frontier::Frontier;
use super::pair::{PairId, PairState, PairStatus};
use super::query::{Condition, Position, Query};
use super::{Appended, LogEvent};
use crate::error::{Error, Result};
use crate::escape::Escaped;
use crate::event::Event;
use crate::store::{NodeId, Store};

/// The log of one outbox.
#[async_trait]
pub trait LogStore: PairStore {
    /// Appends events in a transaction of their own, if the condition holds.
    async fn append(&self, events: &[Event], condition: &Condition) -> Result<Appended>;

    /// Events that match, by position, after this one and not beyond `upto`.
    async fn read(
        &self,
        query: &Query,
        after: Position,
        upto: Option<Position>,
        limit: usize,
    ) -> Result<Vec<Stored>>;

    /// All events after one position and not beyond another, for publishing: as many as fit into so many bytes, and
    /// at least one.
    async fn read_bounded(
        &self,
        after: Position,
        upto: Position,
        limit: usize,
        max_bytes: usize,
    ) -> Result<BoundedRead>;

    /// Notes an event that cannot be read, before publishers pass it over. Returns whether it was noted now, and not
    /// before.
    async fn note_unreadable(&self, position: Position, reason: &str) -> Result<bool>;

    /// Events that publishers have passed over because they cannot be read, the last ones first.
    async fn unreadable(&self, limit: usize) -> Result<Vec<Unreadable>>;

    /// A position up to which the answer to a query is decided: whoever might still commit an event that matches has been
    /// waited for, and what is appended from now on stands behind it.
    async fn settled(&self, query: &Query) -> Result<Position>;

    /// Finds out how far the log is decided, for all queries at once and without waiting for anybody. What is learned is kept
    /// in the frontier, which goes from call to call.
    async fn advance(&self, frontier: &mut Frontier) -> Result<()>;

    /// How far the log was decided when somebody last noted it: where a frontier may begin.
    async fn decided(&self) -> Result<Position>;

    /// Notes how far the log is decided.
    async fn note_decided(&self, safe: Position) -> Result<()>;

    /// Pairs that cannot move because a transaction that has appended is still open, and that transaction: the oldest, if there are
    /// several. Only PostgreSQL tells: elsewhere an open append holds up other appends, not publishers.
    async fn waiting(&self) -> Result<Vec<(PairId, OpenAppend)>> {
        Ok(Vec::new())
    }

    /// Deletes one batch of events that were stored longer ago than this and that every pair has passed, the first ones first.
    /// Returns how many. A pair that is paused, fails or is run by no relay any more has passed what its row says. The last event
    /// of the log stays, so that its end does not go back.
    async fn purge_log(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// The greatest position there is, decided or not.
    async fn head(&self) -> Result<Position>;

    /// The last position that was stored before this time.
    async fn position_at(&self, time: DateTime<Utc>) -> Result<Position>;
}

/// Where the pairs of a log stand, and who leads them.
#[async_trait]
pub trait PairStore: Send + Sync {
    /// Makes rows for pairs that have none. `true`: at the head of the log instead of its start.
    async fn register(&self, pairs: &[(PairId, bool)]) -> Result<()>;

    /// Says that this node is alive, renews what it leads, and looks around. What it led but did not renew in time is not
    /// renewed: somebody else may be about to take it, so it has to be [claimed](PairStore::claim) again.
    async fn tend(&self, node: &NodeId, ttl: Duration) -> Result<Roll>;

    /// Where all pairs stand, by name.
    async fn pairs(&self) -> Result<Vec<PairState>>;

    /// Takes these pairs, as far as nobody leads them, in a new epoch. Returns those taken, as they now stand. One that this node
    /// leads already is not taken again.
    async fn claim(&self, node: &NodeId, ttl: Duration, pairs: &[PairId]) -> Result<Vec<PairState>>;

    /// Moves pairs, and notes errors. Returns those that moved: the others have another leader, or somebody has set them
    /// elsewhere. The same move told again, because its answer was lost, counts as moved. A leader whose time is over may still
    /// move its pairs, until somebody takes them: what was published need not be published again.
    async fn save(&self, node: &NodeId, moves: &[Move]) -> Result<Vec<PairId>>;

    /// Gives pairs back for others to take at once.
    async fn release(&self, node: &NodeId, pairs: &[(PairId, i64)]) -> Result<()>;

    /// Gives everything back and is gone.
    async fn leave(&self, node: &NodeId) -> Result<()>;

    /// Sets the status of pairs: those of a publisher, of one topic if that is given. Active also forgets errors. Returns how
    /// many there are.
    async fn set_status(&self, publisher: &str, topic: Option<&str>, status: PairStatus) -> Result<u64>;

    /// Sets a pair to a position, forwards or back, whoever leads it: nobody does any more. Forgets errors; a failed pair is
    /// active again, a paused one stays paused. Returns whether there is such a pair.
    async fn reset(&self, pair: &PairId, position: Position) -> Result<bool>;
}

/// The answer to [`read_bounded`](LogStore::read_bounded).
#[derive(Debug, Default)]
pub struct BoundedRead {
    /// By position.
    pub rows: Vec<Stored>,
    /// Whether there are more, which the bytes did not allow.
    pub cut: bool,
}

/// A transaction that has appended to the log and is still open, on PostgreSQL: events behind its position wait for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenAppend {
    /// The process id of its backend, as `pg_stat_activity` has it; none if it was prepared.
    pub backend: Option<i64>,
    /// The name under which it was prepared (`PREPARE TRANSACTION`).
    pub prepared: Option<String>,
    /// When it began; none if this role may not see that (`pg_read_all_stats`).
    pub since: Option<DateTime<Utc>>,
    /// The role that began it.
    pub user: Option<String>,
    /// The `application_name` of its session.
    pub application: Option<String>,
}

impl fmt::Display for OpenAppend {
    /// Which transaction: `backend 4711 (role shop, application checkout)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.prepared, self.backend) {
            (Some(name), _) => write!(f, "prepared transaction {}", Escaped(name))?,
            (None, Some(backend)) => write!(f, "backend {backend}")?,
            (None, None) => f.write_str("a transaction of an unknown backend")?,
        }
        let user = self.user.as_ref().map(|user| format!("role {}", Escaped(user)));
        let application = self.application.as_ref().map(|name| format!("application {}", Escaped(name)));
        let about: Vec<String> = user.into_iter().chain(application).collect();
        if about.is_empty() { Ok(()) } else { write!(f, " ({})", about.join(", ")) }
    }
}

/// An event of the log that cannot be read, and that publishers have passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Where it is.
    pub position: Position,
    /// Why it cannot be read.
    pub reason: String,
    /// When a publisher first came to it.
    pub noted_at: DateTime<Utc>,
}

/// A row of the log: an event, or its position and why it is not one.
pub type Stored = Result<LogEvent, (Position, String)>;

/// Who is there, and where everything stands.
#[derive(Clone, Debug, Default)]
pub struct Roll {
    /// The nodes that are alive, this one included.
    pub nodes: Vec<NodeId>,
    /// All pairs, by name.
    pub pairs: Vec<PairState>,
}

/// What a leader has to say about its pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which pair.
    pub pair: PairId,
    /// In which epoch.
    pub epoch: i64,
    /// Where it stands in the table.
    pub from: Position,
    /// Where it stands now.
    pub to: Position,
    /// What became of its status: active with no errors, or failed. A pause that somebody set meanwhile stays.
    pub status: PairStatus,
    /// How many errors in a row.
    pub error_count: u32,
    /// The last of them.
    pub last_error: Option<String>,
}

/// The log of a store, or that it has none.
pub(crate) fn log_of(store: &dyn Store) -> Result<&dyn LogStore> {
    store.log().ok_or_else(|| Error::Store(format!("the store {:?} has no event log", store.name())))
}
