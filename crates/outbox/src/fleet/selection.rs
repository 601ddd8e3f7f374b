//! Which database is polled next.

use std::fmt;

/// Decides which database is polled next, when several wait for their turn.
///
/// A pure decision: no clock, no database. Called for each turn, with all waiting databases.
///
/// ```
/// use outbox::fleet::{Polled, Selection};
///
/// /// Paying tenants go first.
/// struct PayingFirst;
///
/// impl Selection for PayingFirst {
///     fn next(&mut self, waiting: &[&str], _: Option<Polled<'_>>) -> usize {
///         waiting.iter().position(|name| name.starts_with("paying-")).unwrap_or(0)
///     }
/// }
/// assert_eq!(PayingFirst.next(&["free-1", "paying-7"], None), 1);
/// ```
pub trait Selection: Send + 'static {
    /// The index in `waiting` of the next database. `waiting` is never empty, and in the order of
    /// the requests; an index out of range counts as 0. `last` is the poll that ended last.
    fn next(&mut self, waiting: &[&str], last: Option<Polled<'_>>) -> usize;

    /// Number of databases that are polled concurrently, of `most` that the connections allow; one
    /// by default. With one, each poll is chosen with the result of the previous one known, however
    /// few databases there are. With more, `next` is called only when more databases than that
    /// wait. Called once, when the relay starts.
    ///
    /// ```
    /// use outbox::fleet::{DrainFirst, RoundRobin, Selection};
    ///
    /// assert_eq!(DrainFirst.max_concurrent(25), 1);
    /// assert_eq!(RoundRobin.max_concurrent(25), 25);
    /// ```
    fn max_concurrent(&self, most: usize) -> usize {
        let _ = most;
        1
    }
}

/// A poll that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled<'a> {
    /// The database.
    pub name: &'a str,
    /// Number of events that it returned.
    pub events: usize,
}

impl fmt::Debug for dyn Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Selection")
    }
}

/// One batch from each database, in the order of their names, cyclically. As many databases as the
/// connections allow are polled concurrently; up to that number no database waits for its turn.
///
/// ```
/// use outbox::fleet::{Polled, RoundRobin, Selection};
///
/// let last = Polled { name: "b", events: 50 };
/// assert_eq!(RoundRobin.next(&["a", "b", "c"], Some(last)), 2);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Selection for RoundRobin {
    fn next(&mut self, waiting: &[&str], last: Option<Polled<'_>>) -> usize {
        after(waiting, last.map_or("", |last| last.name))
    }

    fn max_concurrent(&self, most: usize) -> usize {
        most
    }
}

/// All events of one database, then the next one: one database is polled at a time. A hanging
/// database blocks the others until the fleet's [patience](super::FleetBuilder::patience) ends.
///
/// ```
/// use outbox::fleet::{DrainFirst, Polled, Selection};
///
/// assert_eq!(DrainFirst.next(&["a", "b", "c"], Some(Polled { name: "b", events: 50 })), 1);
/// assert_eq!(DrainFirst.next(&["a", "b", "c"], Some(Polled { name: "b", events: 0 })), 2);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainFirst;

impl Selection for DrainFirst {
    fn next(&mut self, waiting: &[&str], last: Option<Polled<'_>>) -> usize {
        let Some(last) = last else { return after(waiting, "") };
        let same = waiting.iter().position(|name| *name == last.name);
        same.filter(|_| last.events > 0).unwrap_or_else(|| after(waiting, last.name))
    }
}

/// Index of the first name after this one, or else of the first of all.
fn after(waiting: &[&str], name: &str) -> usize {
    let first = |only: &dyn Fn(&str) -> bool| {
        let some = waiting.iter().enumerate().filter(|(_, waiting)| only(waiting));
        some.min_by_key(|(_, waiting)| **waiting).map(|(index, _)| index)
    };
    first(&|waiting| waiting > name).or_else(|| first(&|_| true)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_robin_wraps_around_and_skips_databases_that_do_not_wait() {
        let last = |name| Some(Polled { name, events: 1 });
        assert_eq!(RoundRobin.next(&["c", "a"], None), 1);
        assert_eq!(RoundRobin.next(&["c", "a"], last("a")), 0);
        assert_eq!(RoundRobin.next(&["c", "a"], last("c")), 1);
        assert_eq!(RoundRobin.next(&["b"], last("b")), 0);
    }
}
