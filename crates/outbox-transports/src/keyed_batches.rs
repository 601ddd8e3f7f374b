//! Splits a batch so that no event overtakes an earlier event with the same ordering key.

use std::collections::HashSet;

use outbox::{EventResult, Failure, Outgoing, PublishError};

/// Sends a batch in sub-batches with at most one event of each ordering key, and collects the
/// result of each event. A later event of a key is only sent once the destination has confirmed the
/// earlier one. All events without a key are in the first sub-batch.
///
/// ```
/// use outbox::{Event, Failure, Outgoing};
/// use outbox_transports::KeyedBatches;
///
/// # let event = |key: &str| Outgoing::new(Event::new("e").ordering_key(key).json(&1).build().unwrap());
/// let events = [event("a"), event("a"), event("b"), event("a")];
/// let mut batches = KeyedBatches::new(&events);
/// assert_eq!(batches.next(), Some(vec![0, 2]));      // the first event of each key
/// batches.published(0);
/// batches.failed(2, Failure::retry("refused"));
/// assert_eq!(batches.next(), Some(vec![1]));         // the second event of `a`
/// batches.failed(1, Failure::retry("refused"));
/// assert_eq!(batches.next(), None);                  // the third event of `a` waits behind it
/// assert!(batches.finish().is_err());
/// ```
#[derive(Debug)]
pub struct KeyedBatches<'a> {
    events: &'a [Outgoing],
    fates: Vec<EventResult>,
    /// Indexes of unsent events, in order.
    pending: Vec<usize>,
    /// Keys with an event that is not published.
    blocked_keys: HashSet<&'a str>,
}

impl<'a> KeyedBatches<'a> {
    /// Splits this batch.
    pub fn new(events: &'a [Outgoing]) -> Self {
        let fates = vec![EventResult::NotAttempted; events.len()];
        Self { events, fates, pending: (0..events.len()).collect(), blocked_keys: HashSet::new() }
    }

    /// Returns the indexes of the next events to send, in order. Report the result of each event
    /// before the next call: an event without a result counts as untried and blocks its key.
    #[expect(
        clippy::should_implement_trait,
        reason = "results of a sub-batch are reported between two calls"
    )]
    pub fn next(&mut self) -> Option<Vec<usize>> {
        let mut keys = HashSet::new();
        let (mut sub_batch, mut deferred) = (Vec::new(), Vec::new());
        for index in std::mem::take(&mut self.pending) {
            match self.events[index].ordering_key() {
                None => sub_batch.push(index),
                Some(key) if self.blocked_keys.contains(key) => {}
                Some(key) if keys.insert(key) => sub_batch.push(index),
                Some(_) => deferred.push(index),
            }
        }
        self.pending = deferred;
        // Blocked until the event is reported as published.
        self.blocked_keys.extend(keys);
        (!sub_batch.is_empty()).then_some(sub_batch)
    }

    /// Reports that the destination confirmed this event.
    pub fn published(&mut self, index: usize) {
        self.fates[index] = EventResult::Published;
        if let Some(key) = self.events[index].ordering_key() {
            self.blocked_keys.remove(key);
        }
    }

    /// Reports that this event failed.
    pub fn failed(&mut self, index: usize, failure: Failure) {
        self.fates[index] = EventResult::Failed(failure);
    }

    /// Returns the result of the batch.
    pub fn finish(self) -> Result<(), PublishError> {
        if self.fates.iter().all(|fate| *fate == EventResult::Published) {
            return Ok(());
        }
        Err(PublishError::each(self.fates))
    }

    /// Ends the batch because the destination is unavailable: events that are not known to be
    /// published are untried.
    pub fn abort(self, reason: impl std::fmt::Display) -> Result<(), PublishError> {
        Err(PublishError::unavailable_with(self.fates, reason))
    }
}
