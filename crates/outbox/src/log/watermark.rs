//! Watermark of a log whose positions are committed out of order.

use std::collections::{HashSet, VecDeque};

use super::query::Position;

/// Maximum number of pending entries kept. A dropped entry delays publishing a little; no event is
/// lost.
const MAX_PENDING: usize = 64;

/// Watermark of a log, with the state needed to advance it.
#[derive(Clone, Debug, Default)]
pub struct Watermark {
    /// The watermark: every position up to here is final.
    pub safe: Position,
    /// The highest committed position, final or not.
    pub seen: Position,
    /// Positions that become final once all of their transactions have ended, the lowest first.
    /// PostgreSQL only.
    pending: VecDeque<PendingTransactions>,
    /// Identifies the run of the server: transaction names are meaningless in another run.
    server: String,
}

/// A position, and the transactions that may have drawn a position up to it.
#[derive(Clone, Debug)]
struct PendingTransactions {
    position: Position,
    holders: HashSet<String>,
}

/// One observation of the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogObservation {
    /// Identifies the run of the server.
    pub(crate) server: String,
    /// The last position that was drawn. Read first.
    pub(crate) drawn: Position,
    /// The transactions that may have drawn a position, read after `drawn`: a transaction that
    /// draws a position is listed until it ends.
    pub(crate) holders: HashSet<String>,
    /// Every position from the watermark up to here is committed.
    pub(crate) unbroken: Position,
    /// The highest committed position.
    pub(crate) newest: Position,
}

impl Watermark {
    /// Starts from a watermark that another node has stored.
    pub fn from(stored_watermark: Position) -> Self {
        Self { safe: stored_watermark, seen: stored_watermark, ..Self::default() }
    }

    /// Sets the end of the log: an end before the watermark means that this is another log, after a
    /// failover or a restore.
    pub(crate) fn ends_at(&mut self, end: Position) {
        if end < self.safe {
            *self = Self { server: std::mem::take(&mut self.server), ..Self::default() };
        }
    }

    /// Raises the watermark to this position.
    pub(crate) fn reach(&mut self, position: Position) {
        self.safe = self.safe.max(position);
        self.seen = self.seen.max(position);
    }

    /// Forgets observed transactions: they may be from another connection, in another run of the
    /// server.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
    }

    /// Advances the watermark by one observation.
    ///
    /// A transaction that had drawn a position when `drawn` was read is in `holders`, or has ended.
    /// So `drawn` is final when all of these have ended, whatever transactions have begun since.
    pub(crate) fn learn(&mut self, look: LogObservation) {
        if self.server != look.server {
            self.pending.clear();
            self.server = look.server;
        }
        self.ends_at(look.drawn);
        self.seen = look.newest.max(self.safe);
        let known = self.pending.back().map_or(self.safe, |last| last.position.max(self.safe));
        if look.drawn > known {
            self.pending
                .push_back(PendingTransactions { position: look.drawn, holders: look.holders.clone() });
        }
        let safe = self.pending.iter().filter(|entry| !entry.waits_for_any(&look.holders));
        let safe = safe.map(|entry| entry.position).max().unwrap_or_default();
        // Not beyond the highest committed position. After a crash a sequence may forget positions
        // that only rolled-back transactions had drawn, and a position that is drawn again must not
        // be below the watermark.
        self.reach(safe.min(look.newest).max(look.unbroken));
        self.pending.retain(|entry| entry.position > self.safe);
        if self.pending.len() > MAX_PENDING {
            self.pending.remove(MAX_PENDING / 2);
        }
    }
}

impl PendingTransactions {
    fn waits_for_any(&self, holders: &HashSet<String>) -> bool {
        // A transaction that was prepared before the server crashed comes back under an unknown
        // name.
        holders.iter().any(|holder| holder.starts_with("-1/") || self.holders.contains(holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `drawn` and `newest` are equal, and `unbroken` is 0, unless a test sets them.
    fn look(drawn: i64, holders: &[&str]) -> LogObservation {
        LogObservation {
            server: "one".to_owned(),
            drawn: Position::new(drawn),
            holders: holders.iter().map(|h| (*h).to_owned()).collect(),
            unbroken: Position::START,
            newest: Position::new(drawn),
        }
    }

    fn safe_after(looks: impl IntoIterator<Item = LogObservation>) -> Vec<i64> {
        let mut watermark = Watermark::default();
        let learned = looks.into_iter().map(|look| {
            watermark.learn(look);
            watermark.safe.get()
        });
        learned.collect()
    }

    #[test]
    fn without_open_transactions_every_drawn_position_is_final() {
        assert_eq!(safe_after([look(0, &[]), look(7, &[]), look(9, &[])]), [0, 7, 9]);
    }

    #[test]
    fn a_log_that_ends_before_the_watermark_is_another_log() {
        assert_eq!(safe_after([look(9, &[]), look(5, &["3/1"]), look(6, &[])]), [9, 0, 6]);
    }

    #[test]
    fn a_position_is_final_when_all_transactions_that_may_have_drawn_it_have_ended() {
        let looks =
            [look(5, &["3/1", "4/1"]), look(6, &["4/1", "5/1"]), look(8, &["5/1"]), look(8, &["6/1"])];
        // 5 is final when 4/1 has ended, although 5/1 has not; 6 and 8 when 5/1 has, although 6/1
        // has begun.
        assert_eq!(safe_after(looks), [0, 0, 5, 8]);
    }

    #[test]
    fn short_transactions_never_block_the_watermark_for_long() {
        let looks = (1..200).map(|n| look(n, &[&format!("3/{n}"), &format!("4/{}", n / 2)]));
        let safe = safe_after(looks);
        assert!(safe.iter().zip(1..).all(|(safe, drawn)| drawn - safe <= 4), "{safe:?}");
    }

    #[test]
    fn a_long_transaction_blocks_the_positions_it_may_have_drawn_and_all_later_ones() {
        let looks = (1..=500).map(|n| look(n, &["3/1", &format!("4/{n}")]));
        let mut looks: Vec<LogObservation> = looks.collect();
        looks[0].holders.remove("3/1");
        looks.push(look(501, &["4/501"]));
        let safe = safe_after(looks);
        assert_eq!(safe[1], 1, "drawn before the transaction began");
        assert_eq!(safe[499], 1);
        assert_eq!(safe[500], 500, "the newest entry is kept, however many there were");
    }

    #[test]
    fn an_unbroken_sequence_is_final_despite_open_transactions() {
        let unbroken = LogObservation { unbroken: Position::new(4), ..look(9, &["3/1"]) };
        assert_eq!(safe_after([unbroken, look(9, &["3/1"]), look(9, &[])]), [4, 4, 9]);
    }

    #[test]
    fn the_watermark_never_passes_an_uncommitted_position() {
        let void = |drawn| LogObservation { newest: Position::new(3), ..look(drawn, &[]) };
        assert_eq!(safe_after([void(5), void(5), look(5, &["3/1"]), look(6, &["4/1"])]), [3, 3, 5, 5]);
    }

    #[test]
    fn another_run_of_the_server_has_none_of_the_earlier_transactions() {
        let other =
            |drawn, holders: &[&str]| LogObservation { server: "two".to_owned(), ..look(drawn, holders) };
        // "3/1" ended with the first run, and "-1/9" may have been the same transaction.
        let looks = [look(5, &["3/1"]), other(5, &["-1/9"]), other(6, &["-1/9"]), other(6, &[])];
        assert_eq!(safe_after(looks), [0, 0, 0, 6]);
    }

    #[test]
    fn a_prepared_transaction_that_comes_back_under_another_name_is_waited_for() {
        assert_eq!(safe_after([look(5, &["3/1"]), look(5, &["-1/9"]), look(5, &["7/7"])]), [0, 0, 5]);
    }
}
