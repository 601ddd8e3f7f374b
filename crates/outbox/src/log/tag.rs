//! Tags: the subjects of an event of the log, by which queries and topics select events.

use std::fmt;

use crate::error::EventError;
use crate::event::check_text;

/// Maximum number of tags of an event.
pub const MAX_TAGS: usize = 64;

/// Maximum length of a tag, written as `name=value`, in characters.
pub const MAX_TAG: usize = 255;

/// A name and a value, such as `wallet_id=w1`.
///
/// The name must not be empty or contain `=`; the value may be any text that fits, including the
/// empty one.
///
/// ```
/// use outbox::Tag;
///
/// let tag = Tag::new("wallet_id", "w1")?;
/// assert_eq!((tag.name(), tag.value()), ("wallet_id", "w1"));
/// assert_eq!(tag.as_str(), "wallet_id=w1");
/// assert!(Tag::new("a=b", "c").is_err());
/// assert!(Tag::new("", "c").is_err());
/// # Ok::<(), outbox::EventError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    text: Box<str>,
    name: usize,
}

impl Tag {
    /// Checks name and value.
    pub fn new(name: impl AsRef<str>, value: impl fmt::Display) -> Result<Self, EventError> {
        let name = check_name(name.as_ref())?;
        let text = format!("{name}={value}");
        check_text("tag", &text, MAX_TAG)?;
        Ok(Self { name: name.len(), text: text.into() })
    }

    /// A tag from a table: a text without `=` is a name without a value.
    pub(crate) fn from_stored(text: String) -> Self {
        match text.find('=') {
            Some(name) => Self { name, text: text.into() },
            None => Self { name: text.len(), text: format!("{text}=").into() },
        }
    }

    /// The part before the `=`.
    pub fn name(&self) -> &str {
        &self.text[..self.name]
    }

    /// The part after the `=`.
    pub fn value(&self) -> &str {
        &self.text[self.name + 1..]
    }

    /// The stored text: `name=value`.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Checks the name of a tag.
pub(crate) fn check_name(name: &str) -> Result<&str, EventError> {
    check_text("tag name", name, MAX_TAG - 1)?;
    if name.contains('=') {
        return Err(EventError::TagName { name: name.to_owned() });
    }
    Ok(name)
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_a_name_without_an_equals_sign_and_any_value() {
        let tag = Tag::new("expr", "a=b").unwrap();
        assert_eq!((tag.name(), tag.value()), ("expr", "a=b"));
        assert_eq!(Tag::new("vip", "").unwrap().as_str(), "vip=");
        assert!(matches!(Tag::new("a=b", "c"), Err(EventError::TagName { .. })));
        assert!(matches!(Tag::new("", "c"), Err(EventError::Empty { .. })));
        assert!(matches!(Tag::new("n", "v".repeat(254)), Err(EventError::TooLong { .. })));
        assert!(matches!(Tag::new("n", "a\0b"), Err(EventError::Control { .. })));
    }

    #[test]
    fn tags_stored_by_other_programs_are_read_unchanged() {
        let tag = Tag::from_stored("a=b=c".to_owned());
        assert_eq!((tag.name(), tag.value()), ("a", "b=c"));
        let bare = Tag::from_stored("bare".to_owned());
        assert_eq!((bare.name(), bare.value()), ("bare", ""));
    }
}
