//! Topics: which events of the log a publisher receives.

use std::sync::Arc;

use super::publisher::Publisher;
use super::subscription::Subscription;
use super::tag::{Tag, check_name};
use crate::error::{Error, EventError, Result};
use crate::event::{Event, EventType, check_text};

/// Maximum length of a topic or publisher name, in characters.
pub(crate) const MAX_NAME: usize = 100;

/// A selection of the log's events, by type and tags. All rules must match; without rules it
/// selects every event.
///
/// ```
/// use outbox::Topic;
///
/// let wallets = Topic::new("wallet-events").required_tags(["wallet_id"]);
/// let payments = Topic::new("payments").any_of_tags(["payment_id", "transfer_id"]).tag("region", "eu");
/// let deposits = Topic::new("deposits").types(["DepositMade"]);
/// let everything = Topic::new("everything");
/// # let _ = (wallets, payments, deposits, everything);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a topic does nothing until it has a publisher: `topic.to(publisher)`"]
pub struct Topic {
    name: Arc<str>,
    types: Vec<EventType>,
    required: Vec<String>,
    any_of: Vec<String>,
    exact: Vec<Tag>,
    mistake: Option<EventError>,
}

impl Topic {
    /// A topic of this name, which selects every event until a rule is added. Its position is
    /// stored under this name.
    pub fn new(name: impl Into<String>) -> Self {
        let name: String = name.into();
        let mistake = check_text("topic name", &name, MAX_NAME).err();
        Self {
            name: name.into(),
            types: Vec::new(),
            required: Vec::new(),
            any_of: Vec::new(),
            exact: Vec::new(),
            mistake,
        }
    }

    /// Only events that have tags of all of these names, whatever their values.
    pub fn required_tags<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        for name in names.into_iter().map(Into::into) {
            self.note(check_name(&name).map(drop));
            self.required.push(name);
        }
        self
    }

    /// Only events that have a tag of at least one of these names.
    pub fn any_of_tags<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        for name in names.into_iter().map(Into::into) {
            self.note(check_name(&name).map(drop));
            self.any_of.push(name);
        }
        self
    }

    /// Only events that have this exact tag. Called repeatedly, all tags are required.
    pub fn tag(mut self, name: impl AsRef<str>, value: impl std::fmt::Display) -> Self {
        match Tag::new(name, value) {
            Ok(tag) => self.exact.push(tag),
            Err(mistake) => self.note(Err(mistake)),
        }
        self
    }

    /// Only events of one of these types.
    pub fn types<T: Into<EventType>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        for event_type in types.into_iter().map(Into::into) {
            self.note(check_text("event type", event_type.as_str(), 255));
            self.types.push(event_type);
        }
        self
    }

    fn note(&mut self, checked: Result<(), EventError>) {
        if let Err(mistake) = checked {
            self.mistake.get_or_insert(mistake);
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }

    /// Whether the topic selects the event.
    pub fn selects(&self, event: &Event) -> bool {
        let tags = event.tags();
        let has = |name: &String| tags.iter().any(|tag| tag.name() == name);
        (self.types.is_empty() || self.types.contains(event.event_type()))
            && self.required.iter().all(has)
            && (self.any_of.is_empty() || self.any_of.iter().any(has))
            && self.exact.iter().all(|tag| tags.contains(tag))
    }

    /// Sends its events to a publisher: see
    /// [`RelayBuilder::publish`](crate::RelayBuilder::publish).
    pub fn to(&self, publisher: impl Publisher) -> Subscription {
        self.to_shared(Arc::new(publisher))
    }

    /// Sends its events to a publisher that is shared with other code.
    pub fn to_shared(&self, publisher: Arc<dyn Publisher>) -> Subscription {
        Subscription::new(self.clone(), publisher)
    }

    pub(crate) fn check(&self) -> Result<()> {
        match &self.mistake {
            None => Ok(()),
            Some(mistake) => {
                Err(Error::setting_by(format!("topic {:?}: {mistake}", self.name), mistake.clone()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::event;

    #[test]
    fn every_rule_of_a_topic_must_hold() {
        let deposit = event("DepositMade", &[("wallet_id", "1"), ("region", "eu")]);
        let transfer = event("MoneyTransferred", &[("transfer_id", "9")]);

        let everything = Topic::new("t");
        assert!(everything.selects(&deposit) && everything.selects(&transfer));

        let required = Topic::new("t").required_tags(["wallet_id", "region"]);
        assert!(required.selects(&deposit) && !required.selects(&transfer));
        assert!(!Topic::new("t").required_tags(["wallet_id", "other"]).selects(&deposit));

        let any = Topic::new("t").any_of_tags(["payment_id", "transfer_id"]);
        assert!(any.selects(&transfer) && !any.selects(&deposit));

        let exact = Topic::new("t").tag("region", "eu");
        assert!(exact.selects(&deposit) && !exact.selects(&transfer));
        assert!(!Topic::new("t").tag("region", "us").selects(&deposit));

        let all = Topic::new("t").types(["DepositMade"]).required_tags(["wallet_id"]).tag("region", "us");
        assert!(!all.selects(&deposit));
    }

    #[test]
    fn an_invalid_rule_is_reported_with_the_topic() {
        for topic in [
            Topic::new(""),
            Topic::new("t").required_tags([""]),
            Topic::new("t").any_of_tags(["a=b"]),
            Topic::new("t").tag("", "x"),
            Topic::new("t").types([""]),
        ] {
            assert!(topic.check().is_err(), "{topic:?}");
        }
        assert!(Topic::new("t").check().is_ok());
    }
}
