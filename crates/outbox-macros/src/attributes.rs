//! The attribute `#[message(…)]`, at a struct, an enum or a variant.

use proc_macro2::Span;
use syn::ext::IdentExt as _;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned as _;
use syn::{Attribute, Error, Ident, LitInt, LitStr, Path, Result, Token};

use crate::template::Template;

/// Longest event type and aggregate type, in characters, as `EventBuilder::build` checks them.
const LONGEST_TYPE: usize = 255;
const LONGEST_AGGREGATE_TYPE: usize = 64;

/// The place of an attribute, which decides about its keys.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Place {
    Struct,
    Enum,
    Variant,
}

impl Place {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Struct => &[
                "type",
                "version",
                "upcast",
                "aggregate",
                "aggregate_type",
                "key",
                "tenant",
                "dedup",
                "tags",
                "crate",
            ],
            Self::Enum => &["aggregate", "aggregate_type", "key", "tenant", "dedup", "tags", "crate"],
            Self::Variant => &[
                "type",
                "version",
                "upcast",
                "aggregate",
                "aggregate_type",
                "key",
                "tenant",
                "dedup",
                "tags",
            ],
        }
    }

    /// Where a key belongs that is not allowed here.
    fn advice(self, key: &str) -> String {
        match (self, key) {
            (Self::Enum, "type" | "version" | "upcast") => {
                format!("each variant is an event type of its own: write `{key}` at the variants")
            }
            (Self::Variant, "crate") => "write `crate` at the enum".to_owned(),
            _ => {
                let keys: Vec<String> = self.keys().iter().map(|key| format!("`{key}`")).collect();
                format!("unknown key `{key}`: expected one of {}", keys.join(", "))
            }
        }
    }
}

/// The aggregate of an event: a constant type, and the id if one is given.
#[derive(Clone)]
pub(crate) struct Aggregate {
    pub(crate) kind: String,
    pub(crate) id: Option<Template>,
    /// Whether handlers are registered for this aggregate type alone.
    pub(crate) is_routed: bool,
}

/// All attributes `#[message(…)]` of one place.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) event_type: Option<LitStr>,
    pub(crate) version: Option<u32>,
    pub(crate) upcast: Option<Path>,
    pub(crate) aggregate: Option<Aggregate>,
    pub(crate) key: Option<Template>,
    pub(crate) tenant: Option<Template>,
    pub(crate) dedup: Option<Template>,
    /// Name and value, in the order they are written.
    pub(crate) tags: Vec<(String, Template)>,
    pub(crate) krate: Option<Path>,
}

impl Attributes {
    pub(crate) fn parse(attributes: &[Attribute], place: Place) -> Result<Self> {
        let mut parsed = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("message")) {
            attribute.parse_nested_meta(|meta| {
                let key = meta.path.get_ident().map(|ident| ident.unraw().to_string()).unwrap_or_default();
                if !place.keys().contains(&key.as_str()) {
                    return Err(meta.error(place.advice(&key)));
                }
                if seen.contains(&key) {
                    return Err(meta.error(format!("`{key}` is given twice")));
                }
                parsed.read(&key, &meta)?;
                seen.push(key);
                Ok(())
            })?;
        }
        Ok(parsed)
    }

    fn read(&mut self, key: &str, meta: &ParseNestedMeta<'_>) -> Result<()> {
        match key {
            "type" => self.event_type = Some(name(meta, "an event type", LONGEST_TYPE)?),
            "version" => self.version = Some(version(meta)?),
            "upcast" => self.upcast = Some(meta.value()?.parse()?),
            "aggregate" => self.set_aggregate(aggregate(&meta.value()?.parse()?)?, meta)?,
            "aggregate_type" => {
                let kind = name(meta, "an aggregate type", LONGEST_AGGREGATE_TYPE)?.value();
                self.set_aggregate(Aggregate { kind, id: None, is_routed: true }, meta)?;
            }
            "key" => self.key = Some(template(meta)?),
            "tenant" => self.tenant = Some(template(meta)?),
            "dedup" => self.dedup = Some(template(meta)?),
            "tags" => self.tags = tags(meta)?,
            _ => self.krate = Some(meta.value()?.parse::<LitStr>()?.parse_with(Path::parse_mod_style)?),
        }
        Ok(())
    }

    /// `aggregate` and `aggregate_type` may be given both, for the same type.
    fn set_aggregate(&mut self, given: Aggregate, meta: &ParseNestedMeta<'_>) -> Result<()> {
        self.aggregate = Some(match self.aggregate.take() {
            Some(other) if other.kind != given.kind => {
                let (first, second) = (other.kind, given.kind);
                return Err(meta.error(format!("two aggregate types: \"{first}\" and \"{second}\"")));
            }
            Some(other) => {
                let (kind, id) = (other.kind, other.id.or(given.id));
                Aggregate { kind, id, is_routed: other.is_routed || given.is_routed }
            }
            None => given,
        });
        Ok(())
    }
}

fn template(meta: &ParseNestedMeta<'_>) -> Result<Template> {
    let literal: LitStr = meta.value()?.parse()?;
    if literal.value().is_empty() {
        return Err(Error::new(literal.span(), "an empty text: leave the key out"));
    }
    Template::parse(&literal)
}

fn name(meta: &ParseNestedMeta<'_>, what: &str, longest: usize) -> Result<LitStr> {
    let literal: LitStr = meta.value()?.parse()?;
    check_name(&literal.value(), what, longest, literal.span())?;
    Ok(literal)
}

/// Checks a name as `EventBuilder::build` would at run time.
pub(crate) fn check_event_type(text: &str, span: Span) -> Result<()> {
    check_name(text, "an event type", LONGEST_TYPE, span)
}

fn check_name(text: &str, what: &str, longest: usize, span: Span) -> Result<()> {
    let length = text.chars().count();
    let mistake = if text.is_empty() {
        format!("{what} cannot be empty")
    } else if length > longest {
        format!("{what} has at most {longest} characters, this one has {length}")
    } else if text.chars().any(char::is_control) {
        format!("{what} cannot contain control characters")
    } else {
        return Ok(());
    };
    Err(Error::new(span, mistake))
}

fn version(meta: &ParseNestedMeta<'_>) -> Result<u32> {
    let literal: LitInt = meta.value()?.parse()?;
    match literal.base10_parse::<u32>() {
        Ok(version) if version > 0 => Ok(version),
        _ => Err(Error::new(literal.span(), "a version is a whole number from 1")),
    }
}

/// `"order/{order}"`: a constant type, and a template for the id.
fn aggregate(literal: &LitStr) -> Result<Aggregate> {
    let text = literal.value();
    let (kind, id) = match text.split_once('/') {
        Some((kind, id)) if !kind.is_empty() && !id.is_empty() => (kind, id),
        _ => {
            let advice = "an aggregate is written `type/id`, such as \"order/{order}\"; \
                          for the type alone write `aggregate_type`";
            return Err(Error::new(literal.span(), advice));
        }
    };
    if kind.contains(['{', '}']) {
        return Err(Error::new(
            literal.span(),
            "the type of an aggregate is constant: only the id may have placeholders",
        ));
    }
    check_name(kind, "an aggregate type", LONGEST_AGGREGATE_TYPE, literal.span())?;
    let id = Some(Template::parse_part(id, literal)?);
    Ok(Aggregate { kind: kind.to_owned(), id, is_routed: false })
}

/// `tags(course = "{course}", "student-id" = "{student}")`.
fn tags(meta: &ParseNestedMeta<'_>) -> Result<Vec<(String, Template)>> {
    let content;
    syn::parenthesized!(content in meta.input);
    let mut tags = Vec::new();
    while !content.is_empty() {
        let (name, span) = if content.peek(LitStr) {
            let literal: LitStr = content.parse()?;
            (literal.value(), literal.span())
        } else {
            let ident = content.call(Ident::parse_any)?;
            (ident.unraw().to_string(), ident.span())
        };
        if name.is_empty() || name.contains('=') || name.chars().any(char::is_control) {
            return Err(Error::new(span, "the name of a tag is not empty and holds no `=`"));
        }
        content.parse::<Token![=]>()?;
        tags.push((name, Template::parse(&content.parse()?)?));
        if !content.is_empty() {
            content.parse::<Token![,]>()?;
        }
    }
    if tags.is_empty() {
        return Err(Error::new(meta.path.span(), "no tags: write `tags(name = \"{field}\")`"));
    }
    Ok(tags)
}
