//! The publishers of a settings file, kept across reloads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use async_trait::async_trait;
use outbox::{Destination, Outgoing, PublishError, Publisher, TracingPublisher, Unavailable};
use tokio::task::JoinSet;

use super::json_lines::{BrokenPipe, FilePublisher, StdoutPublisher};
use super::statistics::{DEFAULT_INTERVAL, StatisticsLogger};
use crate::config::{self, Config, Transport};

/// Time limit for the health check of a publisher.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// All publishers by name.
#[derive(Clone, Default)]
pub(crate) struct Publishers(BTreeMap<String, PublisherEntry>);

/// Result of the health check of a publisher.
pub(crate) struct PublisherHealth {
    pub(crate) name: String,
    /// Name of the transport.
    pub(crate) kind: &'static str,
    pub(crate) health: Result<(), Unavailable>,
}

#[derive(Clone)]
struct PublisherEntry {
    publisher: Arc<dyn Publisher>,
    destination: Destination,
    kind: &'static str,
    written: Option<toml::Value>,
    /// The publisher, if it is a `statistics` publisher.
    statistics: Option<Arc<StatisticsLogger>>,
}

impl Publishers {
    /// Creates the publishers of the settings. A publisher whose settings have not changed is taken
    /// from `before`, and keeps its connections and the state of its outage.
    pub(crate) fn new(
        config: &Config,
        before: &Publishers,
        broken_pipe: &Arc<BrokenPipe>,
    ) -> anyhow::Result<Self> {
        let mut entries = BTreeMap::new();
        for (name, settings) in &config.publishers {
            let entry = match before.0.get(name) {
                Some(same) if same.matches(settings) => same.clone(),
                _ => PublisherEntry::new(name, settings, broken_pipe)?,
            };
            entries.insert(name.clone(), entry);
        }
        Ok(Self(entries))
    }

    pub(crate) fn destination(&self, name: &str) -> Option<Destination> {
        self.0.get(name).map(|entry| entry.destination.clone())
    }

    pub(crate) fn publisher(&self, name: &str) -> Option<Arc<dyn Publisher>> {
        self.0.get(name).map(|entry| entry.publisher.clone())
    }

    pub(crate) fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.0.values().map(|entry| &entry.destination)
    }

    /// Names of publishers that are new or differ from `before`.
    pub(crate) fn changed<'a>(&'a self, before: &'a Publishers) -> impl Iterator<Item = &'a str> {
        let is_same = |name: &str, entry: &PublisherEntry| {
            before.0.get(name).is_some_and(|old| Arc::ptr_eq(&old.publisher, &entry.publisher))
        };
        self.0.iter().filter(move |(name, entry)| !is_same(name, entry)).map(|(name, _)| name.as_str())
    }

    /// Logs counts that have changed, if the interval is over.
    pub(crate) fn log_counts_if_due(&self) {
        self.statistics().for_each(StatisticsLogger::log_if_due);
    }

    /// Logs counts that have changed.
    pub(crate) fn log_counts(&self) {
        self.statistics().for_each(StatisticsLogger::log_now);
    }

    fn statistics(&self) -> impl Iterator<Item = &StatisticsLogger> {
        self.0.values().filter_map(|entry| entry.statistics.as_deref())
    }

    /// Checks the health of all publishers concurrently. The results are sorted by name.
    pub(crate) async fn check_health(&self) -> Vec<PublisherHealth> {
        let mut checks = JoinSet::new();
        for (name, entry) in self.0.clone() {
            checks.spawn(async move {
                let timed_out = |_| Err(Unavailable::new(format!("no answer within {HEALTH_TIMEOUT:?}")));
                let health = tokio::time::timeout(HEALTH_TIMEOUT, entry.publisher.health()).await;
                PublisherHealth { name, kind: entry.kind, health: health.unwrap_or_else(timed_out) }
            });
        }
        let mut results = checks.join_all().await;
        results.sort_by(|one, other| one.name.cmp(&other.name));
        results
    }

    #[cfg(test)]
    pub(crate) fn of<const N: usize>(publishers: [(&str, Arc<dyn Publisher>); N]) -> Self {
        let entry = |publisher: Arc<dyn Publisher>| PublisherEntry {
            destination: Destination::new(publisher.clone()),
            publisher,
            kind: "test",
            written: None,
            statistics: None,
        };
        Self(publishers.into_iter().map(|(name, publisher)| (name.to_owned(), entry(publisher))).collect())
    }
}

impl PublisherEntry {
    fn new(name: &str, settings: &config::Publisher, broken_pipe: &Arc<BrokenPipe>) -> anyhow::Result<Self> {
        let mut statistics = None;
        let publisher: Box<dyn Publisher> = match &settings.transport {
            Transport::File(file) => Box::new(FilePublisher::new(file.path.as_str())),
            Transport::Stdout => Box::new(StdoutPublisher::new(broken_pipe.clone())),
            Transport::Log => Box::new(TracingPublisher::named(name)),
            Transport::Statistics(settings) => {
                let every = settings.every.map_or(DEFAULT_INTERVAL, |every| every.0);
                Box::new(statistics.insert(Arc::new(StatisticsLogger::new(name, every))).clone())
            }
            Transport::Broker(broker) => {
                broker.open(name).map_err(|why| anyhow!("publisher `{name}`: {why}"))?
            }
        };
        let publisher: Arc<dyn Publisher> =
            Arc::new(RenamedPublisher { name: name.to_owned(), inner: publisher });
        Ok(Self {
            destination: Destination::new(publisher.clone()),
            publisher,
            kind: settings.kind,
            written: Some(settings.written.clone()),
            statistics,
        })
    }

    fn matches(&self, settings: &config::Publisher) -> bool {
        self.kind == settings.kind && self.written.as_ref() == Some(&settings.written)
    }
}

/// A publisher under its name in the settings.
struct RenamedPublisher {
    name: String,
    inner: Box<dyn Publisher>,
}

#[async_trait]
impl Publisher for RenamedPublisher {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.inner.publish_batch(events).await
    }

    async fn health(&self) -> Result<(), Unavailable> {
        self.inner.health().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(of_b: &str) -> Config {
        let text = format!(
            "[database]\nurl = \"sqlite:x.db\"\n[publishers.a.file]\npath = \"a\"\n[publishers.b.file]\npath = \"{of_b}\"\n\
             [[routes]]\ntype = \"a\"\nto = \"a\"\n[[routes]]\nto = \"b\"\n"
        );
        Config::parse(&text, &crate::config::Environment::default(), None).unwrap()
    }

    #[test]
    fn an_unchanged_publisher_keeps_its_connection_and_its_breaker() {
        let broken_pipe = Arc::default();
        let before = Publishers::new(&config("b"), &Publishers::default(), &broken_pipe).unwrap();
        let after = Publishers::new(&config("other"), &before, &broken_pipe).unwrap();
        let is_same = |name| after.destination(name).unwrap().is_same(&before.destination(name).unwrap());
        assert!(is_same("a") && !is_same("b"));
        assert_eq!(after.changed(&before).collect::<Vec<_>>(), ["b"]);
    }
}
