//! Routes from events to publishers. The first route that matches wins.

use std::collections::BTreeMap;
use std::fmt;

use outbox::Event;
use outbox::settings::file::Retry;
use serde::Deserialize;
use toml::Spanned;

use super::pattern::Patterns;

/// One `[[routes]]` table. A condition that is not set matches anything.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Route {
    pub(crate) r#type: Option<Patterns>,
    pub(crate) aggregate_type: Option<Patterns>,
    pub(crate) aggregate_id: Option<Patterns>,
    pub(crate) tenant: Option<Patterns>,
    pub(crate) key: Option<Patterns>,
    #[serde(default)]
    pub(crate) header: BTreeMap<String, Patterns>,
    pub(crate) to: Spanned<String>,
    pub(crate) retry: Option<Retry>,
}

impl Route {
    /// Creates a route that matches all events.
    pub(crate) fn all(to: &str) -> Self {
        Self {
            r#type: None,
            aggregate_type: None,
            aggregate_id: None,
            tenant: None,
            key: None,
            header: BTreeMap::new(),
            to: Spanned::new(0..0, to.to_owned()),
            retry: None,
        }
    }

    /// Whether the condition on the event type matches.
    pub(crate) fn matches_type(&self, event_type: &str) -> bool {
        self.r#type.as_ref().is_none_or(|patterns| patterns.matches(event_type))
    }

    /// Whether all conditions except the one on the event type match.
    pub(crate) fn matches_conditions(&self, event: &Event) -> bool {
        let fits = |patterns: &Option<Patterns>, text: Option<&str>| {
            patterns.as_ref().is_none_or(|patterns| text.is_some_and(|text| patterns.matches(text)))
        };
        fits(&self.aggregate_type, Some(event.aggregate_type().as_str()))
            && fits(&self.aggregate_id, event.aggregate_id())
            && fits(&self.tenant, event.tenant_id())
            && fits(&self.key, event.ordering_key())
            && self
                .header
                .iter()
                .all(|(name, patterns)| event.header(name).is_some_and(|text| patterns.matches(text)))
    }

    /// Whether only the event type decides. The aggregate type may be `*`, since every event has
    /// one; other attributes may be missing, so that even `*` is a condition.
    pub(crate) fn is_by_type_alone(&self) -> bool {
        self.aggregate_type.as_ref().is_none_or(Patterns::is_anything)
            && self.aggregate_id.is_none()
            && self.tenant.is_none()
            && self.key.is_none()
            && self.header.is_empty()
    }

    /// Whether the route matches every event.
    pub(crate) fn matches_all(&self) -> bool {
        self.is_by_type_alone() && self.r#type.as_ref().is_none_or(Patterns::is_anything)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            ("type", &self.r#type),
            ("aggregate-type", &self.aggregate_type),
            ("aggregate-id", &self.aggregate_id),
            ("tenant", &self.tenant),
            ("key", &self.key),
        ];
        let mut conditions: Vec<String> = named
            .into_iter()
            .filter_map(|(name, patterns)| patterns.as_ref().map(|patterns| format!("{name} {patterns}")))
            .collect();
        conditions.extend(self.header.iter().map(|(name, patterns)| format!("header {name} {patterns}")));
        if conditions.is_empty() { f.write_str("everything") } else { f.write_str(&conditions.join(", ")) }
    }
}
