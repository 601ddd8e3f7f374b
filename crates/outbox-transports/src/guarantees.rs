//! Delivery guarantees of a transport, declared for users and checked by the conformance suite.

/// Delivery guarantees of a transport for confirmed events.
///
/// ```
/// use outbox_transports::{Duplicates, Guarantees, Order};
///
/// const OF_MY_PUBLISHER: Guarantees =
///     Guarantees::new(Order::PerKey, Duplicates::Delivered, "the row is committed");
/// assert_eq!(OF_MY_PUBLISHER.order, Order::PerKey);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// Whether receivers see the events of an ordering key in order.
    pub order: Order,
    /// How an event that is sent twice is handled.
    pub duplicates: Duplicates,
    /// Meaning of a confirmation.
    pub confirmed: &'static str,
}

impl Guarantees {
    /// Guarantees of a publisher. `confirmed` completes the sentence "an event is confirmed when".
    pub const fn new(order: Order, duplicates: Duplicates, confirmed: &'static str) -> Self {
        Self { order, duplicates, confirmed }
    }
}

/// The order in which receivers see events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Events with the same ordering key arrive in the order in which they were written.
    PerKey,
    /// No order.
    Unordered,
}

/// How an event that is sent twice is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Duplicates {
    /// The server drops the duplicate within its deduplication window.
    Dropped,
    /// Receivers get both copies and deduplicate by the event's id.
    Delivered,
}
