//! Queries and conditions: the events that a decision is based on, and those that must not have
//! been appended since.

use std::fmt;

use super::tag::Tag;
use crate::error::EventError;
use crate::event::{Event, EventType};

/// Maximum number of alternatives of a query, and of types or tags of an alternative.
const MAX_PARTS: usize = 64;

/// A position in the log. The first event has position 1; positions increase, and some numbers may
/// be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(i64);

impl Position {
    /// Before the first event.
    pub const START: Position = Position(0);

    /// This number; a negative number is the start.
    pub const fn new(number: i64) -> Self {
        Self(if number < 0 { 0 } else { number })
    }

    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl From<Position> for i64 {
    fn from(position: Position) -> i64 {
        position.0
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Selects events of the log that have *all* of these tags and *one* of these types, or match an
/// alternative.
///
/// ```
/// use outbox::Query;
///
/// // everything about one wallet
/// let wallet = Query::tag("wallet_id", "w1");
/// // deposits into one wallet, and everything about another
/// let both = Query::tag("wallet_id", "w1").types(["DepositMade"]).or(Query::tag("wallet_id", "w2"));
/// // everything
/// let all = Query::all();
/// # let _ = (wallet, both, all);
/// ```
///
/// An invalid tag or type, such as an empty name, is reported when the query is used. Appends wait
/// for each other by the first tag of an alternative: put the most selective tag first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a query does nothing until it is read"]
pub struct Query {
    items: Vec<Item>,
    mistake: Option<EventError>,
}

/// One alternative of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// One of these; empty: any.
    pub(crate) types: Vec<EventType>,
    /// All of these.
    pub(crate) tags: Vec<Tag>,
}

impl Item {
    fn matches(&self, event: &Event) -> bool {
        (self.types.is_empty() || self.types.contains(event.event_type()))
            && self.tags.iter().all(|tag| event.tags().contains(tag))
    }
}

impl Query {
    /// Every event.
    pub fn all() -> Self {
        Self { items: vec![Item::default()], mistake: None }
    }

    /// Events with this tag.
    pub fn tag(name: impl AsRef<str>, value: impl fmt::Display) -> Self {
        Self::all().and_tag(name, value)
    }

    /// Events of one of these types.
    pub fn of_types<T: Into<EventType>>(types: impl IntoIterator<Item = T>) -> Self {
        Self::all().types(types)
    }

    /// Requires this tag too.
    pub fn and_tag(mut self, name: impl AsRef<str>, value: impl fmt::Display) -> Self {
        match Tag::new(name, value) {
            Ok(tag) => self.last().tags.push(tag),
            Err(mistake) => _ = self.mistake.get_or_insert(mistake),
        }
        self
    }

    /// Requires one of these types.
    pub fn types<T: Into<EventType>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        let before = self.last().types.len();
        for event_type in types.into_iter().map(Into::into) {
            match crate::event::check_text("event type", event_type.as_str(), 255) {
                Ok(()) => self.last().types.push(event_type),
                Err(mistake) => _ = self.mistake.get_or_insert(mistake),
            }
        }
        if self.last().types.len() == before {
            // No types would otherwise select every event.
            self.mistake.get_or_insert(EventError::Empty { field: "the list of event types" });
        }
        self
    }

    /// Adds the alternatives of another query.
    pub fn or(mut self, other: Query) -> Self {
        self.items.extend(other.items);
        self.mistake = self.mistake.or(other.mistake);
        self
    }

    fn last(&mut self) -> &mut Item {
        if self.items.is_empty() {
            self.items.push(Item::default());
        }
        let last = self.items.len() - 1;
        &mut self.items[last]
    }

    /// Whether the query selects the event.
    pub fn matches(&self, event: &Event) -> bool {
        self.items.iter().any(|item| item.matches(event))
    }

    /// Its alternatives, or the first error.
    pub(crate) fn items(&self) -> Result<&[Item], EventError> {
        if let Some(mistake) = &self.mistake {
            return Err(mistake.clone());
        }
        let most = self.items.iter().flat_map(|item| [item.types.len(), item.tags.len()]);
        let most = most.chain([self.items.len()]).max().unwrap_or_default();
        if most > MAX_PARTS {
            return Err(EventError::TooMany { what: "parts of a query", count: most, limit: MAX_PARTS });
        }
        Ok(&self.items)
    }
}

/// Condition of an append.
///
/// ```
/// use outbox::{Condition, Position, Query};
///
/// // this name must never have been registered
/// let free = Condition::unless(Query::tag("name", "ada"));
/// // no event of the wallet may have been appended since position 42
/// let unchanged = Condition::unless(Query::tag("wallet_id", "w1")).after(Position::new(42));
/// // and if this request was carried out before, that is fine, and nothing is appended
/// let once = unchanged.once(Query::tag("request_id", "r7"));
/// # let _ = (free, once);
/// ```
///
/// Most conditions come from a [projection](crate::Log::project), by
/// [`unchanged`](crate::Projection::unchanged). A position that you choose yourself must be one up
/// to which *all* matching events have been seen: one that [`settled`](crate::Log::settled)
/// returned, or that a publisher was given. The highest position that a plain
/// [`read`](crate::Log::read) returned is not: on PostgreSQL an event with a lower position may
/// still be about to commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a condition does nothing until `append_if`"]
pub struct Condition {
    pub(crate) unless: Vec<(Query, Position)>,
    pub(crate) once: Vec<Query>,
}

impl Condition {
    /// Fails with a [conflict](crate::Error::Conflict) if an event matches, at any position.
    pub fn unless(query: Query) -> Self {
        Self { unless: vec![(query, Position::START)], once: Vec::new() }
    }

    /// Appends nothing if an event matches: the append [was done before](crate::Appended::Already),
    /// which is no error.
    pub fn only_once(query: Query) -> Self {
        Self { unless: Vec::new(), once: vec![query] }
    }

    /// Only events after this position count as a conflict, for the condition that was added last:
    /// conditions that were combined with it keep their own position.
    pub fn after(mut self, position: Position) -> Self {
        if let Some((_, after)) = self.unless.last_mut() {
            *after = position;
        }
        self
    }

    /// Also appends nothing if an event matches this query, as with
    /// [`only_once`](Condition::only_once).
    pub fn once(mut self, query: Query) -> Self {
        self.once.push(query);
        self
    }

    /// Requires both conditions.
    pub fn and(mut self, other: Condition) -> Self {
        self.unless.extend(other.unless);
        self.once.extend(other.once);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::event;

    #[test]
    fn a_query_requires_all_tags_and_one_type_or_matches_an_alternative() {
        let query = Query::tag("w", "1").and_tag("r", "eu").types(["A", "B"]).or(Query::of_types(["C"]));
        assert!(query.matches(&event("A", &[("r", "eu"), ("w", "1"), ("x", "y")])));
        assert!(query.matches(&event("C", &[])));
        assert!(!query.matches(&event("A", &[("w", "1")])));
        assert!(!query.matches(&event("D", &[("w", "1"), ("r", "eu")])));
        assert!(Query::all().matches(&event("D", &[])));
    }

    #[test]
    fn a_mistake_in_a_query_is_reported_when_it_is_used() {
        assert!(Query::tag("", "1").items().is_err());
        assert!(Query::tag("a", "1").or(Query::tag("b=c", "1")).items().is_err());
        assert!(Query::of_types([""]).items().is_err());
        assert!(Query::of_types(Vec::<String>::new()).items().is_err());
        let many = (0..100).fold(Query::all(), |query, n| query.and_tag("n", n));
        assert!(matches!(many.items(), Err(EventError::TooMany { .. })));
    }
}
