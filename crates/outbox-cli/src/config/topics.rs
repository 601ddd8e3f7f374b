//! Topics: which events of the log go to which publishers.

use std::collections::BTreeMap;

use outbox_transports::Text;
use serde::Deserialize;
use toml::Spanned;

use super::count::Count;
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
    #[serde(default)]
    pub(crate) from: From,
}

impl Topic {
    /// One for all events of the log.
    pub(crate) fn all(name: &str, to: &str, batch_size: Option<Count>, interval: Option<Time<1>>) -> Self {
        Self {
            name: Spanned::new(0..0, name.into()),
            to: vec![Spanned::new(0..0, to.to_owned())],
            types: Vec::new(),
            required_tags: Vec::new(),
            any_of_tags: Vec::new(),
            tag: BTreeMap::new(),
            batch_size,
            interval,
            timeout: None,
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

    /// What is said of a pair, whatever publisher it is with.
    pub(crate) fn pace(&self, mut pair: outbox::Pair) -> outbox::Pair {
        if let Some(count) = self.batch_size {
            pair = pair.batch(count.get());
        }
        if let Some(time) = self.interval {
            pair = pair.every(time.0);
        }
        if let Some(time) = self.timeout {
            pair = pair.timeout(time.0);
        }
        if self.from == From::Now { pair.from_now() } else { pair }
    }
}
