//! What a transport promises, for people to choose by and for the conformance suite to check.

/// What a transport promises about the events that it confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// Whether receivers see the events of an ordering key in order.
    pub order: Order,
    /// What becomes of an event that is sent twice.
    pub repeats: Repeats,
    /// What it means that an event is confirmed.
    pub confirmed: &'static str,
}

/// The order in which receivers see events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those of an ordering key in the order in which they were written.
    PerKey,
    /// None.
    Any,
}

/// What becomes of an event that is sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// The server drops the second one, within a time that it is set to.
    Dropped,
    /// Receivers see both, and tell by the event's id.
    Seen,
}
