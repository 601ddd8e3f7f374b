//! Topics: selections of log events, and their publishers.

use std::collections::BTreeMap;

use outbox::settings::file::{Count, Reader, Time};
use outbox_transports::Text;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

/// Reads all topics: one `[[topics]]` table for each or, as in Crablet, one `[topics.NAME]` table.
pub(super) fn topics(reader: &mut Reader<'_>) -> Vec<Topic> {
    let Some((key, value)) = reader.take("topics") else { return Vec::new() };
    match value.into_inner() {
        DeValue::Array(items) => items.into_iter().filter_map(|item| topic(reader, None, item)).collect(),
        DeValue::Table(named) => {
            named.into_iter().filter_map(|(name, item)| topic(reader, Some(name), item)).collect()
        }
        _ => {
            reader.wrong(&key.span(), "use one `[[topics]]` table for each");
            Vec::new()
        }
    }
}

fn topic<'i>(
    reader: &mut Reader<'i>,
    name: Option<Spanned<DeString<'i>>>,
    mut item: Spanned<DeValue<'i>>,
) -> Option<Topic> {
    if let DeValue::Table(table) = item.get_mut() {
        *table = reader.spelled(std::mem::take(table), '_', '-');
        if let Some(name) = name {
            let value = Spanned::new(name.span(), DeValue::String(name.get_ref().clone()));
            reader.insert_other(table, &name, "name".to_owned(), value);
        }
        rename_settings(reader, table);
    }
    reader.read(item)
}

/// Renames settings with Crablet's names, and splits lists that Crablet writes as one text.
fn rename_settings<'i>(reader: &mut Reader<'i>, table: &mut DeTable<'i>) {
    for list in ["types", "required-tags", "any-of-tags", "publishers"] {
        if let Some(list) = table.get_mut(list) {
            split_at_commas(list);
        }
    }
    if table.get("publishers").is_some_and(|publishers| publishers.get_ref().is_array())
        && let Some((key, publishers)) = table.remove_entry("publishers")
    {
        reader.insert_other(table, &key, "to".to_owned(), publishers);
    }
    reader.rename_others("topics", table);
    if let Some(DeValue::Table(publishers)) = table.get_mut("publishers").map(Spanned::get_mut) {
        for (_, pace) in publishers.iter_mut() {
            if let DeValue::Table(pace) = pace.get_mut() {
                *pace = reader.spelled(std::mem::take(pace), '_', '-');
                reader.rename_others("topics", pace);
            }
        }
    }
}

/// Splits a list that is written as one text, as in property files: `wallet_id,payment_id`.
fn split_at_commas(value: &mut Spanned<DeValue<'_>>) {
    let span = value.span();
    if let DeValue::String(text) = value.get_ref() {
        let item = |item: &str| Spanned::new(span.clone(), DeValue::String(item.trim().to_owned().into()));
        let items: DeArray<'_> = text.split(',').map(item).collect();
        *value = Spanned::new(span, DeValue::Array(items));
    }
}

/// A batch size, up to the largest that the library accepts.
pub(crate) type Batch = Count<100_000>;

/// Start of a topic that was never published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StartAt {
    #[default]
    Start,
    Now,
}

/// One topic of the file.
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
    pub(crate) batch_size: Option<Batch>,
    pub(crate) interval: Option<Time<1>>,
    pub(crate) timeout: Option<Time<1>>,
    /// Settings of single publishers, which override the topic's.
    #[serde(default)]
    pub(crate) publishers: BTreeMap<Spanned<String>, PublisherPace>,
    #[serde(default)]
    pub(crate) from: StartAt,
}

/// Batch size, interval and timeout of one publisher of a topic; the topic's settings are the
/// defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct PublisherPace {
    pub(crate) batch_size: Option<Batch>,
    pub(crate) interval: Option<Time<1>>,
    pub(crate) timeout: Option<Time<1>>,
}

impl Topic {
    /// Creates a topic of all events of the log.
    pub(crate) fn all(name: &str, to: &str, batch_size: Option<Batch>) -> Self {
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
            from: StartAt::default(),
        }
    }

    /// The topic as the library represents it.
    pub(crate) fn selection(&self) -> outbox::Topic {
        let texts = |texts: &[Text]| texts.iter().map(|text| text.as_str().to_owned()).collect::<Vec<_>>();
        let topic = outbox::Topic::new(self.name.get_ref().as_str())
            .types(texts(&self.types))
            .required_tags(texts(&self.required_tags))
            .any_of_tags(texts(&self.any_of_tags));
        self.tag.iter().fold(topic, |topic, (name, value)| topic.tag(name, value.as_str()))
    }

    /// Configures a subscription of this topic by the settings of its publisher, or the topic's.
    /// The relay has the settings of all topics.
    pub(crate) fn pace(
        &self,
        mut subscription: outbox::Subscription,
        publisher: &str,
    ) -> outbox::Subscription {
        let own = self.publishers.iter().find(|(name, _)| name.get_ref() == publisher);
        let own = own.map(|(_, pace)| pace.clone()).unwrap_or_default();
        if let Some(count) = own.batch_size.or(self.batch_size) {
            subscription = subscription.batch(count.get());
        }
        if let Some(time) = own.interval.or(self.interval) {
            subscription = subscription.interval(time.0);
        }
        if let Some(time) = own.timeout.or(self.timeout) {
            subscription = subscription.timeout(time.0);
        }
        if self.from == StartAt::Now { subscription.from_now() } else { subscription }
    }
}
