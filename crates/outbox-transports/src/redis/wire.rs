//! Redis Streams entries.

use outbox::Failure;
use redis::Cmd;

use crate::Message;

const CONTENT_TYPE: &str = "content-type";
const PAYLOAD: &str = "payload";

/// An entry and its stream.
pub(super) struct Entry {
    pub(super) stream: String,
    pub(super) message: Message,
}

impl Entry {
    /// The event's headers under their own names, except for names of the last two fields.
    fn headers(&self) -> impl Iterator<Item = &(String, String)> {
        self.message.headers.iter().filter(|(name, _)| {
            let reserved = [CONTENT_TYPE, PAYLOAD];
            !reserved.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
        })
    }

    pub(super) fn size(&self) -> usize {
        self.message.size() + CONTENT_TYPE.len() + PAYLOAD.len()
    }

    pub(super) fn fits(&self, limit: usize) -> Result<(), Failure> {
        self.message.fits(limit.saturating_sub(CONTENT_TYPE.len() + PAYLOAD.len()), "an entry of the stream")
    }

    pub(super) fn command(&self, max_len: Option<u64>, create: bool) -> Cmd {
        let mut command = redis::cmd("XADD");
        command.arg(&self.stream);
        if !create {
            command.arg("NOMKSTREAM");
        }
        if let Some(max_len) = max_len {
            // `~` trims whole nodes: exact trimming costs time at every entry.
            command.arg("MAXLEN").arg("~").arg(max_len);
        }
        command.arg("*");
        for (name, value) in self.headers() {
            command.arg(name).arg(value);
        }
        command.arg(CONTENT_TYPE).arg(&self.message.content_type);
        command.arg(PAYLOAD).arg(&self.message.body[..]);
        command
    }
}

#[cfg(test)]
mod tests {
    use outbox::{Event, Outgoing};

    use super::*;
    use crate::{Encoder, Format};

    fn entry() -> Entry {
        let event = Event::new("e").header("payload", "not this").header("Region", "eu").json(&7);
        let event = Outgoing::new(event.build().unwrap());
        let message = Encoder::new(Format::Plain, "").encode(&event).unwrap();
        Entry { stream: "orders".to_owned(), message }
    }

    fn words(command: &Cmd) -> Vec<String> {
        let words = command.args_iter().map(|word| match word {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => "?".to_owned(),
        });
        words.collect()
    }

    #[test]
    fn an_entry_has_headers_content_type_and_payload() {
        let words = words(&entry().command(None, true));
        assert_eq!(words[..4], ["XADD", "orders", "*", "outbox-id"]);
        assert_eq!(
            words[words.len() - 6..],
            ["Region", "eu", "content-type", "application/json", "payload", "7"]
        );
        assert_eq!(words.iter().filter(|word| *word == "payload").count(), 1);
    }

    #[test]
    fn a_stream_is_trimmed_and_not_created_if_configured() {
        let words = words(&entry().command(Some(1000), false));
        assert_eq!(words[..7], ["XADD", "orders", "NOMKSTREAM", "MAXLEN", "~", "1000", "*"]);
    }
}
