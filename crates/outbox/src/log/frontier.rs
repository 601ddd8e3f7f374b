//! How far a log is decided, where positions are committed out of their order.

use std::collections::{HashSet, VecDeque};

use super::query::Position;

/// How many barriers are kept. One that is left out costs a little time, never an event.
const MOST_BARRIERS: usize = 64;

/// How far a log is decided, and what has to be known to find out more.
#[derive(Clone, Debug, Default)]
pub struct Frontier {
    /// Everything up to here is decided.
    pub safe: Position,
    /// The greatest position that somebody has committed, decided or not.
    pub seen: Position,
    /// Positions that are decided once all of these transactions are over, the nearest first. PostgreSQL only.
    barriers: VecDeque<Barrier>,
    /// Which run of the server that was: names of transactions mean nothing in another.
    server: String,
}

/// A position, and the transactions that may have drawn one up to there.
#[derive(Clone, Debug)]
struct Barrier {
    position: Position,
    holders: HashSet<String>,
}

/// What one look at the database saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// Which run of the server it was.
    pub(crate) server: String,
    /// The last position that was drawn. Read first.
    pub(crate) drawn: Position,
    /// The transactions that may have drawn a position, seen after that: whoever draws one is among them until its end.
    pub(crate) holders: HashSet<String>,
    /// Every position from the safe one up to here is committed.
    pub(crate) unbroken: Position,
    /// The greatest committed position.
    pub(crate) newest: Position,
}

impl Frontier {
    /// Begins where somebody else has come to.
    pub fn from(decided: Position) -> Self {
        Self { safe: decided, seen: decided, ..Self::default() }
    }

    /// The log ends here: less than was decided before means that it is another log, after a failover or a restore.
    pub(crate) fn ends_at(&mut self, end: Position) {
        if end < self.safe {
            *self = Self { server: std::mem::take(&mut self.server), ..Self::default() };
        }
    }

    /// Everything up to here is decided.
    pub(crate) fn reach(&mut self, position: Position) {
        self.safe = self.safe.max(position);
        self.seen = self.seen.max(position);
    }

    /// Forgets what was seen of others' transactions: it may have been on another connection, in another life of the server.
    pub(crate) fn forget(&mut self) {
        self.barriers.clear();
    }

    /// Draws the conclusions.
    ///
    /// Whoever had drawn a position when `drawn` was read is in `holders`, or over. So `drawn` is decided when all of these
    /// are over, whatever others have begun since.
    pub(crate) fn learn(&mut self, look: Look) {
        if self.server != look.server {
            self.barriers.clear();
            self.server = look.server;
        }
        self.ends_at(look.drawn);
        self.seen = look.newest.max(self.safe);
        let known = self.barriers.back().map_or(self.safe, |last| last.position.max(self.safe));
        if look.drawn > known {
            self.barriers.push_back(Barrier { position: look.drawn, holders: look.holders.clone() });
        }
        let decided = self.barriers.iter().filter(|barrier| !barrier.waits_for_any(&look.holders));
        let decided = decided.map(|barrier| barrier.position).max().unwrap_or_default();
        // No further than what somebody has committed. A sequence may forget after a crash what only transactions drew that
        // were rolled back, and a position that is drawn again must not be behind us.
        self.reach(decided.min(look.newest).max(look.unbroken));
        self.barriers.retain(|barrier| barrier.position > self.safe);
        if self.barriers.len() > MOST_BARRIERS {
            self.barriers.remove(MOST_BARRIERS / 2);
        }
    }
}

impl Barrier {
    fn waits_for_any(&self, holders: &HashSet<String>) -> bool {
        // A transaction that was prepared before the server crashed comes back under a name that nobody has seen.
        holders.iter().any(|holder| holder.starts_with("-1/") || self.holders.contains(holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `drawn` and `newest` are the same, and nothing is unbroken, unless a test says more.
    fn look(drawn: i64, holders: &[&str]) -> Look {
        Look {
            server: "one".to_owned(),
            drawn: Position::new(drawn),
            holders: holders.iter().map(|h| (*h).to_owned()).collect(),
            unbroken: Position::START,
            newest: Position::new(drawn),
        }
    }

    fn safe_after(looks: impl IntoIterator<Item = Look>) -> Vec<i64> {
        let mut frontier = Frontier::default();
        let learned = looks.into_iter().map(|look| {
            frontier.learn(look);
            frontier.safe.get()
        });
        learned.collect()
    }

    #[test]
    fn with_nobody_there_everything_drawn_is_decided() {
        assert_eq!(safe_after([look(0, &[]), look(7, &[]), look(9, &[])]), [0, 7, 9]);
    }

    #[test]
    fn a_log_that_ends_before_what_was_decided_is_another_one() {
        assert_eq!(safe_after([look(9, &[]), look(5, &["3/1"]), look(6, &[])]), [9, 0, 6]);
    }

    #[test]
    fn a_position_is_decided_when_those_are_over_who_may_have_drawn_it() {
        let looks =
            [look(5, &["3/1", "4/1"]), look(6, &["4/1", "5/1"]), look(8, &["5/1"]), look(8, &["6/1"])];
        // 5 when 4/1 is over, though 5/1 is not; 6 and 8 when 5/1 is, though 6/1 has come.
        assert_eq!(safe_after(looks), [0, 0, 5, 8]);
    }

    #[test]
    fn those_who_come_and_go_never_hold_it_up_for_good() {
        let looks = (1..200).map(|n| look(n, &[&format!("3/{n}"), &format!("4/{}", n / 2)]));
        let safe = safe_after(looks);
        assert!(safe.iter().zip(1..).all(|(safe, drawn)| drawn - safe <= 4), "{safe:?}");
    }

    #[test]
    fn one_that_stays_holds_up_what_it_may_have_drawn_and_all_after_it() {
        let looks = (1..=500).map(|n| look(n, &["3/1", &format!("4/{n}")]));
        let mut looks: Vec<Look> = looks.collect();
        looks[0].holders.remove("3/1");
        looks.push(look(501, &["4/501"]));
        let safe = safe_after(looks);
        assert_eq!(safe[1], 1, "what was drawn before it");
        assert_eq!(safe[499], 1);
        assert_eq!(safe[500], 500, "the newest barrier is kept, however many there were");
    }

    #[test]
    fn an_unbroken_run_is_decided_whoever_is_there() {
        let unbroken = Look { unbroken: Position::new(4), ..look(9, &["3/1"]) };
        assert_eq!(safe_after([unbroken, look(9, &["3/1"]), look(9, &[])]), [4, 4, 9]);
    }

    #[test]
    fn no_position_is_passed_that_nobody_has_committed() {
        let void = |drawn| Look { newest: Position::new(3), ..look(drawn, &[]) };
        assert_eq!(safe_after([void(5), void(5), look(5, &["3/1"]), look(6, &["4/1"])]), [3, 3, 5, 5]);
    }

    #[test]
    fn another_run_of_the_server_knows_no_transaction_of_the_last() {
        let other = |drawn, holders: &[&str]| Look { server: "two".to_owned(), ..look(drawn, holders) };
        // "3/1" is over with the first server, and "-1/9" may have been it.
        let looks = [look(5, &["3/1"]), other(5, &["-1/9"]), other(6, &["-1/9"]), other(6, &[])];
        assert_eq!(safe_after(looks), [0, 0, 0, 6]);
    }

    #[test]
    fn a_prepared_transaction_that_comes_back_under_another_name_is_waited_for() {
        assert_eq!(safe_after([look(5, &["3/1"]), look(5, &["-1/9"]), look(5, &["7/7"])]), [0, 0, 5]);
    }
}
