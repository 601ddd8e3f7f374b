//! Names of an event: its type, its aggregate's type, its id.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

use serde::Serialize;

use super::GLOBAL;

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Cow<'static, str>);

        impl $name {
            /// Creates a constant from a text known at compile time.
            pub const fn from_static(text: &'static str) -> Self {
                Self(Cow::Borrowed(text))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Cow::Owned(text.to_owned()))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Cow::Owned(text))
            }
        }

        impl From<&String> for $name {
            fn from(text: &String) -> Self {
                Self(Cow::Owned(text.clone()))
            }
        }

        impl From<&$name> for $name {
            fn from(text: &$name) -> Self {
                text.clone()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

text_type! {
    /// The type of an event, such as `order.placed`.
    ///
    /// Strings convert to it. So does your own enum, with one `From`:
    ///
    /// ```
    /// use outbox::{Event, EventType};
    ///
    /// enum UserEvents { Created, Deleted }
    ///
    /// impl From<UserEvents> for EventType {
    ///     fn from(event: UserEvents) -> Self {
    ///         EventType::from_static(match event {
    ///             UserEvents::Created => "user.created",
    ///             UserEvents::Deleted => "user.deleted",
    ///         })
    ///     }
    /// }
    ///
    /// let event = Event::new(UserEvents::Created).json(&"ada").build()?;
    /// assert_eq!(event.event_type(), "user.created");
    /// # let _ = UserEvents::Deleted;
    /// # Ok::<(), outbox::EventError>(())
    /// ```
    EventType
}

text_type! {
    /// The type of the aggregate that an event belongs to, such as `order`.
    AggregateType
}

impl AggregateType {
    /// The type of events that belong to no aggregate.
    pub const GLOBAL: AggregateType = AggregateType::from_static(GLOBAL);

    /// The type in a column; NULL is the global aggregate.
    pub(crate) fn of_column(text: Option<&str>) -> Self {
        match text {
            None | Some(GLOBAL) => Self::GLOBAL,
            Some(named) => Self::from(named),
        }
    }
}

/// The id of an event: unique, unchanged by retries and the same on every path; consumers
/// deduplicate by it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Arc<str>);

impl EventId {
    /// Generates a ULID that is greater than all earlier ones of this process.
    pub fn generate() -> Self {
        static GENERATOR: LazyLock<Mutex<ulid::Generator>> =
            LazyLock::new(|| Mutex::new(ulid::Generator::new()));
        let mut generator = GENERATOR.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ulid = match generator.generate() {
            Ok(ulid) => ulid,
            Err(overflow) => overflow.commit_overflow_increment(),
        };
        drop(generator);
        Self(ulid.array_to_str(&mut [0; ulid::ULID_LEN]).into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for EventId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for EventId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl From<&EventId> for EventId {
    fn from(id: &EventId) -> Self {
        id.clone()
    }
}

impl PartialEq<str> for EventId {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for EventId {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl AsRef<str> for EventId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Serialize for EventId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
