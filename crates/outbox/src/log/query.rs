//! Queries and conditions: which events a decision is based on, and what must not have happened since.

use std::fmt;

use super::tag::Tag;
use crate::error::EventError;
use crate::event::{Event, EventType};

/// How many alternatives a query, and how many types or tags an alternative, may have.
const MAX_PARTS: usize = 64;

/// A place in the log. The first event has position 1; every event's is greater than those of the events before it, and
/// some numbers may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(i64);

impl Position {
    /// Before the first event.
    pub const START: Position = Position(0);

    /// This number; what is below zero is the start.
    pub const fn new(number: i64) -> Self {
        Self(if number < 0 { 0 } else { number })
    }

    /// The number itself.
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

/// Which events of the log to read: those that have *all* of these tags and *one* of these types, or fit an alternative.
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
/// What cannot be a tag or a type, such as an empty name, is reported by whoever is given the query. The first tag of an
/// alternative is what appends wait for each other by: put the one that says most first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a query does nothing until it is read"]
pub struct Query {
    items: Vec<Item>,
    mistake: Option<EventError>,
}

/// One alternative of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// One of these; none: any.
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

    /// And with this tag too.
    pub fn and_tag(mut self, name: impl AsRef<str>, value: impl fmt::Display) -> Self {
        match Tag::new(name, value) {
            Ok(tag) => self.last().tags.push(tag),
            Err(mistake) => _ = self.mistake.get_or_insert(mistake),
        }
        self
    }

    /// And of one of these types.
    pub fn types<T: Into<EventType>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        let before = self.last().types.len();
        for event_type in types.into_iter().map(Into::into) {
            match crate::event::check_text("event type", event_type.as_str(), 255) {
                Ok(()) => self.last().types.push(event_type),
                Err(mistake) => _ = self.mistake.get_or_insert(mistake),
            }
        }
        if self.last().types.len() == before {
            // Without a word it would be every event.
            self.mistake.get_or_insert(EventError::Empty { field: "the list of event types" });
        }
        self
    }

    /// Or what the other one says.
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

    /// Whether the event is one of those asked for.
    pub fn matches(&self, event: &Event) -> bool {
        self.items.iter().any(|item| item.matches(event))
    }

    /// Its alternatives, without mistakes.
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

/// What must hold for an append to happen.
///
/// ```
/// use outbox::{Condition, Position, Query};
///
/// // nobody may have registered this name, ever
/// let free = Condition::unless(Query::tag("name", "ada"));
/// // nothing may have happened to the wallet since position 42
/// let unchanged = Condition::unless(Query::tag("wallet_id", "w1")).after(Position::new(42));
/// // and if this request was carried out before, that is fine, and nothing is appended
/// let once = unchanged.once(Query::tag("request_id", "r7"));
/// # let _ = (free, once);
/// ```
///
/// Most conditions come from a [projection](crate::Log::project), by
/// [`unchanged`](crate::Projection::unchanged). A position that you choose yourself must be one up to which *everything* that
/// matches has been seen: what [`settled`](crate::Log::settled) returns, or what a publisher was given. The greatest position
/// that a plain [`read`](crate::Log::read) happened to see is not: on PostgreSQL an earlier one may still be about to commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a condition does nothing until `append_if`"]
pub struct Condition {
    pub(crate) unless: Vec<(Query, Position)>,
    pub(crate) once: Vec<Query>,
}

impl Condition {
    /// Fails with a [conflict](crate::Error::Conflict) if an event matches, wherever it stands.
    pub fn unless(query: Query) -> Self {
        Self { unless: vec![(query, Position::START)], once: Vec::new() }
    }

    /// Nothing is appended if an event matches: it [was done before](crate::Appended::Already), and that is no error.
    pub fn only_once(query: Query) -> Self {
        Self { unless: Vec::new(), once: vec![query] }
    }

    /// Only what stands after this position counts as a conflict, for what was said last: conditions that were combined
    /// with it keep theirs.
    pub fn after(mut self, position: Position) -> Self {
        if let Some((_, after)) = self.unless.last_mut() {
            *after = position;
        }
        self
    }

    /// And nothing is appended if an event matches this, as with [`only_once`](Condition::only_once).
    pub fn once(mut self, query: Query) -> Self {
        self.once.push(query);
        self
    }

    /// Both must hold.
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
    fn a_query_wants_all_tags_and_one_type_or_fits_an_alternative() {
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
