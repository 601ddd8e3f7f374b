//! The publishers of a settings file, made and kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use async_trait::async_trait;
use outbox::{Destination, LogPublisher, Outgoing, PublishError, Publisher, Unavailable};
use tokio::task::JoinSet;

use super::counting::{Counting, EVERY};
use super::lines::{Gone, ToFile, ToStdout};
use crate::config::{self, Config, Transport};

/// How long a publisher may take to say whether it is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// All publishers by name.
#[derive(Clone, Default)]
pub(crate) struct Outlets(BTreeMap<String, Outlet>);

/// A publisher that was asked for its health.
pub(crate) struct Asked {
    pub(crate) name: String,
    /// Its transport.
    pub(crate) kind: &'static str,
    pub(crate) health: Result<(), Unavailable>,
}

#[derive(Clone)]
struct Outlet {
    publisher: Arc<dyn Publisher>,
    destination: Destination,
    kind: &'static str,
    written: Option<toml::Value>,
    /// The publisher, if it counts.
    counting: Option<Arc<Counting>>,
}

impl Outlets {
    /// Makes what the settings name. Those that are as they were before are the same as before: their connections stay, and
    /// what is known of their outages.
    pub(crate) fn new(config: &Config, before: &Outlets, gone: &Arc<Gone>) -> anyhow::Result<Self> {
        let mut outlets = BTreeMap::new();
        for (name, publisher) in &config.publishers {
            let outlet = match before.0.get(name) {
                Some(same) if same.is(publisher) => same.clone(),
                _ => Outlet::new(name, publisher, gone)?,
            };
            outlets.insert(name.clone(), outlet);
        }
        Ok(Self(outlets))
    }

    pub(crate) fn destination(&self, name: &str) -> Option<Destination> {
        self.0.get(name).map(|outlet| outlet.destination.clone())
    }

    pub(crate) fn publisher(&self, name: &str) -> Option<Arc<dyn Publisher>> {
        self.0.get(name).map(|outlet| outlet.publisher.clone())
    }

    pub(crate) fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.0.values().map(|outlet| &outlet.destination)
    }

    /// Which of these are not as they were before.
    pub(crate) fn changed<'a>(&'a self, before: &'a Outlets) -> impl Iterator<Item = &'a str> {
        let is_same = |name: &str, outlet: &Outlet| {
            before.0.get(name).is_some_and(|old| Arc::ptr_eq(&old.publisher, &outlet.publisher))
        };
        self.0.iter().filter(move |(name, outlet)| !is_same(name, outlet)).map(|(name, _)| name.as_str())
    }

    /// Logs counts that have changed, if it is time to.
    pub(crate) fn log_counts_if_due(&self) {
        self.counting().for_each(Counting::log_if_due);
    }

    /// Logs counts that have changed.
    pub(crate) fn log_counts(&self) {
        self.counting().for_each(Counting::log_now);
    }

    fn counting(&self) -> impl Iterator<Item = &Counting> {
        self.0.values().filter_map(|outlet| outlet.counting.as_deref())
    }

    /// Asks each publisher for its health, all at once. Returns name, transport and health of each.
    pub(crate) async fn ask(&self) -> Vec<Asked> {
        let mut asked = JoinSet::new();
        for (name, outlet) in self.0.clone() {
            asked.spawn(async move {
                let late = |_| Err(Unavailable::new(format!("no answer within {PATIENCE:?}")));
                let health = tokio::time::timeout(PATIENCE, outlet.publisher.health()).await;
                Asked { name, kind: outlet.kind, health: health.unwrap_or_else(late) }
            });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by(|one, other| one.name.cmp(&other.name));
        answers
    }

    #[cfg(test)]
    pub(crate) fn of<const N: usize>(publishers: [(&str, Arc<dyn Publisher>); N]) -> Self {
        let outlet = |publisher: Arc<dyn Publisher>| Outlet {
            destination: Destination::new(publisher.clone()),
            publisher,
            kind: "test",
            written: None,
            counting: None,
        };
        Self(publishers.into_iter().map(|(name, publisher)| (name.to_owned(), outlet(publisher))).collect())
    }
}

impl Outlet {
    fn new(name: &str, settings: &config::Publisher, gone: &Arc<Gone>) -> anyhow::Result<Self> {
        let mut counting = None;
        let publisher: Box<dyn Publisher> = match &settings.transport {
            Transport::File(file) => Box::new(ToFile::new(file.path.as_str())),
            Transport::Stdout => Box::new(ToStdout::new(gone.clone())),
            Transport::Log => Box::new(LogPublisher::named(name)),
            Transport::Statistics(settings) => {
                let every = settings.every.map_or(EVERY, |every| every.0);
                Box::new(counting.insert(Arc::new(Counting::new(name, every))).clone())
            }
            Transport::Broker(broker) => {
                broker.open(name).map_err(|why| anyhow!("publisher `{name}`: {why}"))?
            }
        };
        let publisher: Arc<dyn Publisher> = Arc::new(Named { name: name.to_owned(), inner: publisher });
        Ok(Self {
            destination: Destination::new(publisher.clone()),
            publisher,
            kind: settings.kind,
            written: Some(settings.written.clone()),
            counting,
        })
    }

    fn is(&self, settings: &config::Publisher) -> bool {
        self.kind == settings.kind && self.written.as_ref() == Some(&settings.written)
    }
}

/// A publisher under the name that the settings give it.
struct Named {
    name: String,
    inner: Box<dyn Publisher>,
}

#[async_trait]
impl Publisher for Named {
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
    fn a_publisher_that_is_as_before_keeps_its_connection_and_its_gate() {
        let gone = Arc::default();
        let before = Outlets::new(&config("b"), &Outlets::default(), &gone).unwrap();
        let after = Outlets::new(&config("other"), &before, &gone).unwrap();
        let is_same = |name| after.destination(name).unwrap().is_same(&before.destination(name).unwrap());
        assert!(is_same("a") && !is_same("b"));
        assert_eq!(after.changed(&before).collect::<Vec<_>>(), ["b"]);
    }
}
