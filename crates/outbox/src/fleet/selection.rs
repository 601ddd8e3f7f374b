//! Which database is polled next.

use std::fmt;

/// Decides which database is polled next, when several wait for their turn.
///
/// It is only asked, and changes nothing itself: no clock, no database. Called again and again, with all that wait.
///
/// ```
/// use outbox::fleet::{Polled, Selection};
///
/// /// The one that pays goes first.
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
    /// The place in `waiting` of the one to go next. `waiting` is never empty, and in the order of asking; a place that
    /// is not in it counts as the first. `last` is the poll that ended last.
    fn next(&mut self, waiting: &[&str], last: Option<Polled<'_>>) -> usize;

    /// How many databases are polled at the same time, of `most` that the connections allow: one, unless this says otherwise.
    /// Then each poll is chosen, with the result of the one before known, however few databases there are. With more at the
    /// same time it is asked only when more databases want to be polled than that. Asked once, when the relay starts.
    ///
    /// ```
    /// use outbox::fleet::{DrainFirst, RoundRobin, Selection};
    ///
    /// assert_eq!(DrainFirst.at_once(25), 1);
    /// assert_eq!(RoundRobin.at_once(25), 25);
    /// ```
    fn at_once(&self, most: usize) -> usize {
        let _ = most;
        1
    }
}

/// A poll that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled<'a> {
    /// The database.
    pub name: &'a str,
    /// How many events it gave.
    pub events: usize,
}

impl fmt::Debug for dyn Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Selection")
    }
}

/// One batch from each, in the order of their names, round and round. As many databases as the connections allow are polled at the
/// same time: with no more than that each has its turn at once.
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

    fn at_once(&self, most: usize) -> usize {
        most
    }
}

/// All that one database has, then the next one: one database is polled at a time. One that hangs holds up the others until
/// the fleet's [patience](super::FleetBuilder::patience) is over.
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

/// The first name after this one, or else the first of all.
fn after(waiting: &[&str], name: &str) -> usize {
    let first = |only: &dyn Fn(&str) -> bool| {
        let some = waiting.iter().enumerate().filter(|(_, waiting)| only(waiting));
        some.min_by_key(|(_, waiting)| **waiting).map(|(place, _)| place)
    };
    first(&|waiting| waiting > name).or_else(|| first(&|_| true)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_robin_wraps_around_and_skips_who_does_not_wait() {
        let last = |name| Some(Polled { name, events: 1 });
        assert_eq!(RoundRobin.next(&["c", "a"], None), 1);
        assert_eq!(RoundRobin.next(&["c", "a"], last("a")), 0);
        assert_eq!(RoundRobin.next(&["c", "a"], last("c")), 1);
        assert_eq!(RoundRobin.next(&["b"], last("b")), 0);
    }
}
