//! The publisher `statistics`: counts events, and logs the counts.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::escape::Escaped;
use outbox::{Outgoing, Position, PublishError, Publisher, Statistics, StatisticsPublisher};

/// Default interval of log lines.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of event types in a log line.
const MAX_TYPES: usize = 20;

/// Publisher that counts events, and logs the counts when they have changed.
pub(crate) struct StatisticsLogger {
    publisher: StatisticsPublisher,
    every: Duration,
    logged: Mutex<LastLogged>,
}

/// Time and total of the last log line.
struct LastLogged {
    at: Instant,
    total: u64,
}

impl StatisticsLogger {
    pub(crate) fn new(name: &str, every: Duration) -> Self {
        let logged = LastLogged { at: Instant::now(), total: 0 };
        Self { publisher: StatisticsPublisher::named(name), every, logged: Mutex::new(logged) }
    }

    /// Logs the counts if they have changed and the interval is over.
    pub(crate) fn log_if_due(&self) {
        let mut logged = self.logged();
        if logged.at.elapsed() >= self.every {
            self.log(&mut logged);
        }
    }

    /// Logs the counts if they have changed.
    pub(crate) fn log_now(&self) {
        self.log(&mut self.logged());
    }

    fn logged(&self) -> MutexGuard<'_, LastLogged> {
        self.logged.lock().expect("no code panics while holding this lock")
    }

    fn log(&self, logged: &mut LastLogged) {
        let counts = self.publisher.statistics();
        logged.at = Instant::now();
        if std::mem::replace(&mut logged.total, counts.total) == counts.total {
            return;
        }
        let (publisher, total) = (self.publisher.name(), counts.total);
        let last_position = counts.last_position.map(Position::get);
        tracing::info!(publisher, total, last_position, types = most_frequent(&counts), "events counted");
    }
}

/// Formats counts as `order.placed 12, order.paid 3`, the most frequent type first.
fn most_frequent(counts: &Statistics) -> String {
    let mut types: Vec<(&String, &u64)> = counts.by_type.iter().collect();
    types.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let more = types.len().saturating_sub(MAX_TYPES);
    let mut shown: Vec<String> =
        types.into_iter().take(MAX_TYPES).map(|(name, count)| format!("{} {count}", Escaped(name))).collect();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

#[async_trait]
impl Publisher for StatisticsLogger {
    fn name(&self) -> &str {
        self.publisher.name()
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.publisher.publish_batch(events).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_most_frequent_types_and_how_many_more_there_are() {
        let mut counts = Statistics::default();
        assert_eq!(most_frequent(&counts), "");
        counts.by_type = (0..23).map(|n| (format!("t{n:02}"), 1)).collect();
        counts.by_type.insert("t07".to_owned(), 9);
        counts.by_type.insert("\u{1b}[31m".to_owned(), 8);
        let shown = most_frequent(&counts);
        assert!(shown.starts_with("t07 9, \\u{1b}[31m 8, t00 1, ") && shown.ends_with(", 4 more"), "{shown}");
    }
}
