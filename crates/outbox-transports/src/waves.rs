//! Batches in flight, without a later event of a key ever overtaking an earlier one.

use std::collections::HashSet;

use outbox::{Failure, Fate, Outgoing, PublishError};

/// The fates of a batch that is sent in waves: of each ordering key one event at a time, so that a later one is only sent when
/// the destination has the earlier one. Events without a key all go in the first wave.
///
/// ```
/// use outbox::{Event, Failure, Outgoing};
/// use outbox_transports::Waves;
///
/// # let event = |key: &str| Outgoing::new(Event::new("e").ordering_key(key).json(&1).build().unwrap());
/// let batch = [event("a"), event("a"), event("b"), event("a")];
/// let mut waves = Waves::new(&batch);
/// assert_eq!(waves.next(), Some(vec![0, 2]));        // the first of each key
/// waves.published(0);
/// waves.failed(2, Failure::retry("refused"));
/// assert_eq!(waves.next(), Some(vec![1]));           // the second of `a`
/// waves.failed(1, Failure::retry("refused"));
/// assert_eq!(waves.next(), None);                    // the third one waits behind it
/// assert!(waves.end().is_err());
/// ```
#[derive(Debug)]
pub struct Waves<'a> {
    events: &'a [Outgoing],
    fates: Vec<Fate>,
    /// Not sent yet, in order.
    left: Vec<usize>,
    /// Keys of which one failed.
    stopped: HashSet<&'a str>,
}

impl<'a> Waves<'a> {
    /// Of this batch.
    pub fn new(events: &'a [Outgoing]) -> Self {
        let fates = vec![Fate::Untried; events.len()];
        Self { events, fates, left: (0..events.len()).collect(), stopped: HashSet::new() }
    }

    /// The places of the events to send now, in order. Say what became of every one before asking for the next wave: one that
    /// nothing was said of counts as untried, and holds its key back.
    #[expect(clippy::should_implement_trait, reason = "what became of a wave is said between two calls")]
    pub fn next(&mut self) -> Option<Vec<usize>> {
        let mut keys = HashSet::new();
        let (mut wave, mut later) = (Vec::new(), Vec::new());
        for index in std::mem::take(&mut self.left) {
            match self.events[index].ordering_key() {
                None => wave.push(index),
                Some(key) if self.stopped.contains(key) => {}
                Some(key) if keys.insert(key) => wave.push(index),
                Some(_) => later.push(index),
            }
        }
        self.left = later;
        // Until it is said to be published.
        self.stopped.extend(keys);
        (!wave.is_empty()).then_some(wave)
    }

    /// The destination has this one.
    pub fn published(&mut self, index: usize) {
        self.fates[index] = Fate::Published;
        if let Some(key) = self.events[index].ordering_key() {
            self.stopped.remove(key);
        }
    }

    /// This one was refused.
    pub fn failed(&mut self, index: usize, failure: Failure) {
        self.fates[index] = Fate::Failed(failure);
    }

    /// What became of the batch.
    pub fn end(self) -> Result<(), PublishError> {
        if self.fates.iter().all(|fate| *fate == Fate::Published) {
            return Ok(());
        }
        Err(PublishError::each(self.fates))
    }

    /// The destination has gone away: what is not known to be published is untried.
    pub fn cut_off(self, reason: impl std::fmt::Display) -> Result<(), PublishError> {
        Err(PublishError::unavailable_with(self.fates, reason))
    }
}
