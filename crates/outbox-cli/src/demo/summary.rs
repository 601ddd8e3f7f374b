//! Summary at the end of the demo: all counts, and whether the outbox kept its guarantees.

use std::fmt;
use std::time::Duration;

use indicatif::HumanCount;

use super::latency::Latencies;
use super::ledger::Totals;
use super::shop::StoredCounts;

pub(crate) struct Summary {
    /// Counts of the ledger.
    pub(crate) totals: Totals,
    /// Counts of the outbox's table.
    pub(crate) stored: StoredCounts,
    /// Number of rows of the shop's own table.
    pub(crate) orders: u64,
    /// Time from the start to the last settled event.
    pub(crate) took: Duration,
    pub(crate) hot: Latencies,
    pub(crate) all: Latencies,
    /// Whether a second Ctrl-C ended the demo before all events were settled.
    pub(crate) aborted: bool,
}

impl Summary {
    /// Events that are committed and still pending.
    fn waiting(&self) -> u64 {
        self.stored.waiting
    }

    /// Events that are committed, and neither delivered nor in the table. Unknown, and so 0, if
    /// events were changed manually: the user may have skipped or deleted some.
    fn lost(&self) -> u64 {
        if self.stored.changed_manually {
            return 0;
        }
        self.totals.written.saturating_sub(self.totals.delivered + self.stored.dead + self.waiting())
    }

    /// Violated guarantees; empty if there are none.
    pub(crate) fn violations(&self) -> Vec<String> {
        let Totals { out_of_order, early, phantom, transactions, .. } = self.totals;
        let stuck = if self.aborted { 0 } else { self.waiting() };
        let mut violations: Vec<String> = [
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
            violations.push(format!("{} orders in the table, {transactions} were committed", self.orders));
        }
        violations
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { transactions, rolled_back_transactions, .. } = self.totals;
        let count = |count: u64| HumanCount(count).to_string();
        let written = format!("in {} transactions, each with its order", count(transactions));
        let rolled_back_transactions =
            format!("in {} transactions: must never be delivered", count(rolled_back_transactions));
        let rows = [
            ("written (committed)", self.totals.written, written.as_str()),
            ("rolled back", self.totals.rolled_back, rolled_back_transactions.as_str()),
            ("delivered", self.totals.delivered, ""),
            ("retried", self.totals.retried, "failed attempts that were retried"),
            ("dead", self.stored.dead, "dead-lettered, kept for inspection"),
            ("waiting", self.waiting(), "not settled when the demo was stopped"),
            ("duplicates", self.totals.duplicates, "allowed: delivery is at least once"),
            ("out of order", self.totals.out_of_order, ""),
            ("too early", self.totals.early, ""),
            ("phantom", self.totals.phantom, ""),
            ("lost", self.lost(), ""),
        ];
        for (name, value, note) in
            rows.into_iter().filter(|(name, value, _)| *name != "waiting" || *value > 0)
        {
            let line = format!("  {name:<20}{:>12}  {note}", count(value));
            writeln!(f, "{}", line.trim_end())?;
        }
        let settled = self.totals.settled();
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
        let totals = Totals { transactions: 2, written: 5, delivered: 4, dead: 1, ..Totals::default() };
        Summary {
            totals,
            stored: StoredCounts { dead: 1, ..StoredCounts::default() },
            orders: 2,
            took: Duration::from_secs(1),
            hot: Latencies::default(),
            all: Latencies::default(),
            aborted: false,
        }
    }

    #[test]
    fn nothing_is_violated_if_all_events_are_delivered_or_dead() {
        assert!(summary().violations().is_empty());
    }

    #[test]
    fn an_event_that_is_neither_delivered_nor_stored_is_lost() {
        let mut summary = summary();
        summary.totals.delivered = 3;
        assert_eq!(summary.violations(), ["1 lost"]);
        summary.stored.changed_manually = true;
        assert!(summary.violations().is_empty(), "the user may have skipped it");
    }

    #[test]
    fn a_waiting_event_is_a_violation_unless_the_demo_was_aborted() {
        let mut summary = summary();
        (summary.totals.delivered, summary.stored.waiting) = (3, 1);
        assert_eq!(summary.violations(), ["1 not delivered in time"]);
        summary.aborted = true;
        assert!(summary.violations().is_empty());
    }

    #[test]
    fn an_order_without_its_events_is_a_violation() {
        let mut summary = summary();
        summary.orders = 3;
        assert_eq!(summary.violations(), ["3 orders in the table, 2 were committed"]);
    }
}
