//! Delivery guarantees of a transport, declared for users and checked by the conformance suite.

/// Delivery guarantees of a transport for confirmed events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// Whether receivers see the events of an ordering key in order.
    pub order: Order,
    /// How an event that is sent twice is handled.
    pub duplicates: Duplicates,
    /// Meaning of a confirmation.
    pub confirmed: &'static str,
}

/// The order in which receivers see events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Events with the same ordering key arrive in the order in which they were written.
    PerKey,
    /// No order.
    Unordered,
}

/// How an event that is sent twice is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// The server drops the duplicate within its deduplication window.
    Dropped,
    /// Receivers get both copies and deduplicate by the event's id.
    Delivered,
}
