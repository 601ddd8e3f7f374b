//! Reading events as types of the application.

use serde_json::Value;

use super::payload_error::ParseLocation;
use super::{Event, GLOBAL, MESSAGE_VERSION, Message, PayloadError};

/// Types that can be read from events: every [`Message`], and every enum that derives it.
///
/// Implement it by hand for payloads that are not JSON:
///
/// ```
/// use outbox::{Event, FromEvent, PayloadError};
///
/// #[derive(Debug, PartialEq)]
/// struct Reading { celsius: f32 }
///
/// impl FromEvent for Reading {
///     const TYPES: &'static [&'static str] = &["temperature.read"];
///
///     fn from_event(event: &Event) -> Result<Self, PayloadError> {
///         let bytes = event.payload_bytes().try_into().map_err(|_| PayloadError::new::<Self>("not four bytes"))?;
///         Ok(Self { celsius: f32::from_le_bytes(bytes) })
///     }
/// }
///
/// let event = Event::new("temperature.read").bytes("application/octet-stream", 21.5_f32.to_le_bytes()).build()?;
/// assert_eq!(event.message::<Reading>().unwrap(), Reading { celsius: 21.5 });
/// # Ok::<(), outbox::EventError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be read from an event",
    label = "not a message",
    note = "derive or implement `outbox::Message` for it; a struct needs `serde::Serialize` and `serde::Deserialize` as well",
    note = "for a payload that is not JSON implement `outbox::FromEvent`"
)]
pub trait FromEvent: Sized + Send + 'static {
    /// The event types that it is read from.
    const TYPES: &'static [&'static str];

    /// The aggregate type of these events; [`GLOBAL`] for any.
    const AGGREGATE_TYPE: &'static str = GLOBAL;

    /// Reads an event of one of the [types](FromEvent::TYPES). [`Event::message`] checks the type
    /// before it calls this.
    fn from_event(event: &Event) -> Result<Self, PayloadError>;
}

impl<M: Message> FromEvent for M {
    const TYPES: &'static [&'static str] = &[M::TYPE];
    const AGGREGATE_TYPE: &'static str = M::AGGREGATE_TYPE;

    fn from_event(event: &Event) -> Result<Self, PayloadError> {
        let version = version_of::<M>(event)?;
        if version < M::VERSION {
            return upcast(event, version);
        }
        // Most payloads of a newer version parse: they have additions.
        serde_json::from_slice(event.payload_bytes()).map_err(|error| {
            let location = ParseLocation(&error);
            if version == M::VERSION {
                return PayloadError::new::<M>(location);
            }
            PayloadError::unknown::<M>(format!(
                "it has version {version}, this build knows versions up to {}: {location}",
                M::VERSION
            ))
        })
    }
}

/// The version that the writer gave to the payload.
fn version_of<M: Message>(event: &Event) -> Result<u32, PayloadError> {
    let Some(text) = event.header(MESSAGE_VERSION) else { return Ok(1) };
    // `parse` accepts a plus sign.
    let version = if text.starts_with('+') { None } else { text.parse().ok() };
    version.filter(|version| *version > 0).ok_or_else(|| {
        let largest = u32::MAX;
        PayloadError::new::<M>(format!(
            "the header {MESSAGE_VERSION} is not a whole number from 1 to {largest}"
        ))
    })
}

/// Reads a payload of an older version.
fn upcast<M: Message>(event: &Event, written: u32) -> Result<M, PayloadError> {
    let mut payload: Value = serde_json::from_slice(event.payload_bytes())
        .map_err(|error| PayloadError::new::<M>(ParseLocation(&error)))?;
    for version in written..M::VERSION {
        payload = M::upcast(version, payload).map_err(|error| {
            let next = version + 1;
            PayloadError::new::<M>(format!("conversion from version {version} to {next}: {error}"))
        })?;
    }
    serde_json::from_value(payload).map_err(|error| {
        let location = ParseLocation(&error);
        PayloadError::new::<M>(format!("{location}, after the conversion from version {written}"))
    })
}

/// Reads the payload of a variant. `expected` names it in errors, since `M` is a generated type.
#[cfg(feature = "macros")]
pub fn read<M: Message>(event: &Event, expected: &'static str) -> Result<M, PayloadError> {
    M::from_event(event).map_err(|error| error.expecting(expected))
}
