//! What is said at the end: every count, and whether the outbox kept its promises.

use std::fmt;
use std::time::Duration;

use indicatif::HumanCount;

use super::latency::Latencies;
use super::ledger::Tally;
use super::shop::Standing;

pub(crate) struct Summary {
    /// What the ledger saw.
    pub(crate) tally: Tally,
    /// What the outbox's table says.
    pub(crate) standing: Standing,
    /// How many rows the shop's own table has.
    pub(crate) orders: u64,
    /// From the start to the last event that was settled.
    pub(crate) took: Duration,
    pub(crate) hot: Latencies,
    pub(crate) all: Latencies,
    /// The user did not want to wait for the rest.
    pub(crate) hurried: bool,
}

impl Summary {
    /// Committed, but still waiting in the table.
    fn waiting(&self) -> u64 {
        self.standing.waiting
    }

    /// Committed, and neither delivered nor in the table. Nobody can tell if somebody has skipped or deleted some by hand.
    fn lost(&self) -> u64 {
        if self.standing.by_hand {
            return 0;
        }
        self.tally.written.saturating_sub(self.tally.delivered + self.standing.dead + self.waiting())
    }

    /// Every promise that was broken; empty if all is well.
    pub(crate) fn broken(&self) -> Vec<String> {
        let Tally { out_of_order, early, phantom, transactions, .. } = self.tally;
        let stuck = if self.hurried { 0 } else { self.waiting() };
        let mut broken: Vec<String> = [
            (self.lost(), "lost"),
            (phantom, "phantom"),
            (out_of_order, "out of order"),
            (early, "too early"),
            (stuck, "not delivered in time"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        if self.orders != transactions {
            broken.push(format!("{} orders in the table, {transactions} were committed", self.orders));
        }
        broken
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { transactions, undone, .. } = self.tally;
        let count = |count: u64| HumanCount(count).to_string();
        let written = format!("in {} transactions, each with its order", count(transactions));
        let undone = format!("in {} transactions: must never arrive", count(undone));
        let rows = [
            ("written (committed)", self.tally.written, written.as_str()),
            ("rolled back", self.tally.rolled_back, undone.as_str()),
            ("delivered", self.tally.delivered, ""),
            ("retried", self.tally.retried, "attempts that failed, and were made again"),
            ("dead", self.standing.dead, "given up, kept for people to look at"),
            ("waiting", self.waiting(), "not through when the demo was stopped"),
            ("duplicates", self.tally.duplicates, "allowed: delivery is at least once"),
            ("out of order", self.tally.out_of_order, ""),
            ("too early", self.tally.early, ""),
            ("phantom", self.tally.phantom, ""),
            ("lost", self.lost(), ""),
        ];
        for (name, value, note) in
            rows.into_iter().filter(|(name, value, _)| *name != "waiting" || *value > 0)
        {
            let line = format!("  {name:<20}{:>12}  {note}", count(value));
            writeln!(f, "{}", line.trim_end())?;
        }
        let settled = self.tally.settled();
        let rate = settled as f64 / self.took.as_secs_f64().max(0.001);
        writeln!(
            f,
            "  {:<20}{:>12}  over {:.1} s",
            "throughput",
            format!("{rate:.0}/s"),
            self.took.as_secs_f64()
        )?;
        writeln!(f)?;
        writeln!(f, "  {:<20}{:>12}{:>12}{:>12}", "commit to handler", "p50", "p99", "max")?;
        for (name, latencies) in [("hot path", &self.hot), ("overall", &self.all)] {
            let [p50, p99, max] =
                [latencies.percentile(50), latencies.percentile(99), latencies.max()].map(milliseconds);
            writeln!(f, "  {name:<20}{p50:>12}{p99:>12}{max:>12}")?;
        }
        Ok(())
    }
}

fn milliseconds(latency: Option<Duration>) -> String {
    latency.map_or_else(|| "-".to_owned(), |latency| format!("{:.2} ms", latency.as_secs_f64() * 1_000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let tally = Tally { transactions: 2, written: 5, delivered: 4, dead: 1, ..Tally::default() };
        Summary {
            tally,
            standing: Standing { dead: 1, ..Standing::default() },
            orders: 2,
            took: Duration::from_secs(1),
            hot: Latencies::default(),
            all: Latencies::default(),
            hurried: false,
        }
    }

    #[test]
    fn all_delivered_or_dead_is_well() {
        assert!(summary().broken().is_empty());
    }

    #[test]
    fn an_event_that_is_nowhere_is_lost() {
        let mut summary = summary();
        summary.tally.delivered = 3;
        assert_eq!(summary.broken(), ["1 lost"]);
        summary.standing.by_hand = true;
        assert!(summary.broken().is_empty(), "somebody may have skipped it");
    }

    #[test]
    fn an_event_that_waits_is_stuck_unless_the_user_was_in_a_hurry() {
        let mut summary = summary();
        (summary.tally.delivered, summary.standing.waiting) = (3, 1);
        assert_eq!(summary.broken(), ["1 not delivered in time"]);
        summary.hurried = true;
        assert!(summary.broken().is_empty());
    }

    #[test]
    fn an_order_without_its_events_is_noticed() {
        let mut summary = summary();
        summary.orders = 3;
        assert_eq!(summary.broken(), ["3 orders in the table, 2 were committed"]);
    }
}
