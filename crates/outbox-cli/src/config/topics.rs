//! Topics: which events of the log go to which publishers.

use std::collections::BTreeMap;

use outbox_transports::Text;
use serde::Deserialize;
use toml::Spanned;

use super::count::Count;
use super::groups::Log;
use super::time::Time;

/// Where a topic starts that nobody has published before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum From {
    #[default]
    Start,
    Now,
}

/// One topic, as it stands in the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Topic {
    pub(crate) name: Spanned<Text>,
    pub(crate) to: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) types: Vec<Text>,
    #[serde(default)]
    pub(crate) required_tags: Vec<Text>,
    #[serde(default)]
    pub(crate) any_of_tags: Vec<Text>,
    #[serde(default)]
    pub(crate) tag: BTreeMap<String, Text>,
    pub(crate) batch_size: Option<Count>,
    pub(crate) interval: Option<Time<1>>,
    pub(crate) timeout: Option<Time<1>>,
    /// Settings of some of its publishers, instead of the topic's.
    #[serde(default)]
    pub(crate) publishers: BTreeMap<Spanned<String>, Pace>,
    #[serde(default)]
    pub(crate) from: From,
}

/// How fast one publisher of a topic goes; settings that are missing are those of the topic.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Pace {
    pub(crate) batch_size: Option<Count>,
    pub(crate) interval: Option<Time<1>>,
    pub(crate) timeout: Option<Time<1>>,
}

impl Topic {
    /// One for all events of the log.
    pub(crate) fn all(name: &str, to: &str, batch_size: Option<Count>) -> Self {
        Self {
            name: Spanned::new(0..0, name.into()),
            to: vec![Spanned::new(0..0, to.to_owned())],
            types: Vec::new(),
            required_tags: Vec::new(),
            any_of_tags: Vec::new(),
            tag: BTreeMap::new(),
            batch_size,
            interval: None,
            timeout: None,
            publishers: BTreeMap::new(),
            from: From::default(),
        }
    }

    /// The library's topic.
    pub(crate) fn selection(&self) -> outbox::Topic {
        let texts = |texts: &[Text]| texts.iter().map(|text| text.as_str().to_owned()).collect::<Vec<_>>();
        let topic = outbox::Topic::new(self.name.get_ref().as_str())
            .types(texts(&self.types))
            .required_tags(texts(&self.required_tags))
            .any_of_tags(texts(&self.any_of_tags));
        self.tag.iter().fold(topic, |topic, (name, value)| topic.tag(name, value.as_str()))
    }

    /// Sets up a pair of this topic: by its publisher's own settings, or the topic's, or those of all topics.
    pub(crate) fn pace(&self, mut pair: outbox::Pair, publisher: &str, all: &Log) -> outbox::Pair {
        let own = self.publishers.iter().find(|(name, _)| name.get_ref() == publisher);
        let own = own.map(|(_, pace)| pace.clone()).unwrap_or_default();
        if let Some(count) = own.batch_size.or(self.batch_size).or(all.batch_size) {
            pair = pair.batch(count.get());
        }
        if let Some(time) = own.interval.or(self.interval).or(all.interval) {
            pair = pair.interval(time.0);
        }
        if let Some(time) = own.timeout.or(self.timeout) {
            pair = pair.timeout(time.0);
        }
        if self.from == From::Now { pair.from_now() } else { pair }
    }
}
