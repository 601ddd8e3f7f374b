//! Destination names with placeholders, such as `orders.{type}`.

use std::fmt;
use std::str::FromStr;

use outbox::{Event, Failure};
use serde::{Deserialize, Deserializer};

use crate::Text;

/// A topic, subject or routing key with placeholders for fields of the event: `{type}`,
/// `{aggregate_type}`, `{aggregate_id}`, `{key}`, `{tenant_id}`, `{correlation_id}`, `{id}` and
/// `{header:NAME}`. `{{` and `}}` are literal braces.
///
/// ```
/// use outbox::Event;
/// use outbox_transports::Template;
///
/// let template: Template = "shop.{tenant_id}.{type}".parse().unwrap();
/// let event = Event::new("order.placed").tenant("acme").json(&1).build().unwrap();
/// assert_eq!(template.render(&event).unwrap(), "shop.acme.order.placed");
/// ```
///
/// Rendering fails permanently for an event that lacks the field of a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Type,
    AggregateType,
    AggregateId,
    Key,
    TenantId,
    CorrelationId,
    Id,
    Header(String),
}

const FIELDS: [(&str, Field); 7] = [
    ("type", Field::Type),
    ("aggregate_type", Field::AggregateType),
    ("aggregate_id", Field::AggregateId),
    ("key", Field::Key),
    ("tenant_id", Field::TenantId),
    ("correlation_id", Field::CorrelationId),
    ("id", Field::Id),
];

impl Field {
    fn value<'a>(&self, event: &'a Event) -> Option<&'a str> {
        match self {
            Field::Type => Some(event.event_type().as_str()),
            Field::AggregateType => Some(event.aggregate_type().as_str()),
            Field::AggregateId => event.aggregate_id(),
            Field::Key => event.ordering_key(),
            Field::TenantId => event.tenant_id(),
            Field::CorrelationId => event.correlation_id(),
            Field::Id => Some(event.id().as_str()),
            Field::Header(name) => event.header(name),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, FIELDS.iter().find(|(_, field)| field == self)) {
            (Field::Header(name), _) => write!(f, "{{header:{name}}}"),
            (_, Some((name, _))) => write!(f, "{{{name}}}"),
            (_, None) => Ok(()),
        }
    }
}

impl Template {
    /// Renders the template for an event.
    pub fn render(&self, event: &Event) -> Result<String, Failure> {
        self.render_as(event, str::to_owned)
    }

    /// Renders a template in which `separators` have a meaning, such as dots in a subject. Only
    /// `{type}` may contain separators, since event types consist of parts themselves. A separator
    /// in any other value could change the destination, for example to another tenant's part:
    /// rendering fails permanently.
    pub fn render_parts(&self, event: &Event, separators: &[char]) -> Result<String, Failure> {
        for part in &self.0 {
            let Part::Field(field) = part else { continue };
            let value = field.value(event).filter(|_| *field != Field::Type);
            if let Some(found) = value.and_then(|value| value.chars().find(|c| separators.contains(c))) {
                return Err(Failure::dead(format!(
                    "{field} contains `{}`, which could change the event's destination",
                    found.escape_debug()
                )));
            }
        }
        self.render(event)
    }

    /// Renders the template with `write` applied to each value, for example to escape it.
    pub fn render_as(&self, event: &Event, write: impl Fn(&str) -> String) -> Result<String, Failure> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Field(field) => match field.value(event) {
                    Some(value) => text.push_str(&write(value)),
                    None => {
                        return Err(Failure::dead(format!(
                            "the destination needs {field}, which the event does not have"
                        )));
                    }
                },
            }
        }
        Ok(text)
    }

    /// The text before the first placeholder.
    pub fn prefix(&self) -> &str {
        match self.0.first() {
            Some(Part::Text(text)) => text,
            Some(Part::Field(_)) | None => "",
        }
    }

    /// The text, if it is the same for every event.
    pub fn fixed(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }
}

/// Reason why a text is not a [`Template`]. Never repeats the text: it may be part of a URL that
/// contains a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A closing brace without an opening one.
    #[error("a `}}` without a `{{`; write `}}}}` for the brace itself")]
    Unopened,
    /// An opening brace without a closing one.
    #[error("a `{{` without a `}}`; write `{{{{` for the brace itself")]
    Unclosed,
    /// The text in braces is not the name of a field.
    #[error("unknown placeholder at character {at}: use {} or {{header:NAME}}", placeholders())]
    #[non_exhaustive]
    Unknown {
        /// Position of the placeholder's opening brace, in characters from 1.
        at: usize,
    },
}

/// Placeholders with fixed names,.
fn placeholders() -> String {
    let names: Vec<String> = FIELDS.iter().map(|(name, _)| format!("{{{name}}}")).collect();
    names.join(", ")
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(TemplateError::Unopened);
            }
            let (name, after) = rest.split_once('}').ok_or(TemplateError::Unclosed)?;
            let known = FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| field.clone());
            let header = name.strip_prefix("header:").filter(|name| !name.is_empty());
            let field = known.or_else(|| header.map(|name| Field::Header(name.to_owned())));
            let at = text[..text.len() - rest.len()].chars().count();
            let field = field.ok_or(TemplateError::Unknown { at })?;
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Field(field));
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self(parts))
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer)?.as_str().parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::new("order.placed").aggregate("Order", "o-1").header("region", "eu").json(&1).build().unwrap()
    }

    #[test]
    fn placeholders_are_filled() {
        for (text, rendered) in [
            ("orders", "orders"),
            ("", ""),
            ("{type}", "order.placed"),
            ("{aggregate_type}/{aggregate_id}-{header:region}", "Order/o-1-eu"),
            ("{{{type}}}", "{order.placed}"),
        ] {
            let template: Template = text.parse().unwrap();
            assert_eq!(template.render(&event()).unwrap(), rendered, "{text}");
            assert_eq!(template.fixed().is_some(), !text.contains("type"), "{text}");
        }
    }

    #[test]
    fn a_missing_field_is_named() {
        let failure = "{tenant_id}.x".parse::<Template>().unwrap().render(&event()).unwrap_err();
        assert_eq!(failure.to_string(), "the destination needs {tenant_id}, which the event does not have");
        let failure = "{header:zone}".parse::<Template>().unwrap().render(&event()).unwrap_err();
        assert_eq!(failure.to_string(), "the destination needs {header:zone}, which the event does not have");
    }

    #[test]
    fn only_the_type_may_have_separators() {
        let event = Event::new("order.placed").tenant("a.b").header("zone", "eu").json(&1).build().unwrap();
        let render = |text: &str| text.parse::<Template>().unwrap().render_parts(&event, &['.', '*']);
        assert_eq!(render("x.{type}.{header:zone}").unwrap(), "x.order.placed.eu");
        let failure = render("x.{tenant_id}.{type}").unwrap_err();
        let expected = "{tenant_id} contains `.`, which could change the event's destination";
        assert_eq!(failure, Failure::dead(expected));
    }

    #[test]
    fn invalid_values_are_named() {
        for (text, expected) in [
            ("{typ}", "unknown placeholder at character 1: use {type}"),
            ("{type", "a `{` without a `}`"),
            ("type}", "a `}` without a `{`"),
            ("ü/{header:}", "unknown placeholder at character 3: use {type}"),
            ("/{?token=hunter2&type={type}", "unknown placeholder at character 2: use {type}"),
            ("/{hunter2}", "unknown placeholder at character 2: use {type}"),
        ] {
            let error = text.parse::<Template>().unwrap_err();
            assert!(error.to_string().starts_with(expected), "{text}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
