//! Log lines on standard error.
//!
//! Log lines contain text from rows: types, ids, errors that quote them. Whatever that text is, a
//! log event is one line without terminal control sequences and without bidirectional controls.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use outbox::escape::{Escaped, escape_json};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{FormatFields, Writer};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::{LogFormat, Usage};

/// Installs a subscriber that writes log lines to standard error.
pub(crate) fn to_stderr(filter: &str, format: LogFormat) -> Result<()> {
    let wrong = || {
        Usage(format!(
            "--log (or OUTBOX_LOG) is {filter:?}: use off, error, warn, info, debug or trace, \
             or a filter such as outbox=debug"
        ))
    };
    // The filter would take a single word for the name of a module, and log nothing.
    let is_word = !filter.contains(['=', ',']);
    if is_word && filter.parse::<LevelFilter>().is_err() {
        return Err(wrong().into());
    }
    let filter = EnvFilter::try_new(filter).map_err(|_| wrong())?;
    subscriber(filter, format, io::stderr().is_terminal(), io::stderr).init();
    Ok(())
}

fn subscriber<W>(
    filter: EnvFilter,
    format: LogFormat,
    ansi: bool,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt().with_env_filter(filter);
    match format {
        LogFormat::Text => {
            Box::new(lines.with_ansi(ansi).fmt_fields(SafeFields).with_writer(writer).finish())
        }
        LogFormat::Json => Box::new(lines.json().flatten_event(true).with_writer(SafeJson(writer)).finish()),
    }
}

/// Formats the message and the fields of an event or a span as `tracing_subscriber` does, with
/// unsafe characters escaped.
struct SafeFields;

impl<'w> FormatFields<'w> for SafeFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = SafeVisitor { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct SafeVisitor<'w> {
    writer: Writer<'w>,
    is_empty: bool,
    result: fmt::Result,
}

impl SafeVisitor<'_> {
    fn write(&mut self, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
        let name = field.name();
        // Fields that the `log` facade adds; the line already has their values.
        if name.starts_with("log.") {
            return Ok(());
        }
        if !std::mem::replace(&mut self.is_empty, false) {
            self.writer.write_char(' ')?;
        }
        let value = Escaped(format_args!("{value:?}"));
        match name {
            "message" => write!(self.writer, "{value}"),
            name if self.writer.has_ansi_escapes() => {
                write!(self.writer, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m{value}")
            }
            name => write!(self.writer, "{name}={value}"),
        }
    }
}

impl Visit for SafeVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, value);
        }
    }
}

/// Escapes C1 and bidirectional controls, which JSON encoding leaves unchanged.
struct SafeJson<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for SafeJson<W> {
    type Writer = SafeJson<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        SafeJson(self.0.make_writer())
    }
}

impl<W: Write> Write for SafeJson<W> {
    /// Is called with a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) => self.0.write_all(escape_json(text).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use outbox::escape::is_unsafe;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the output for one log event in which every text is this one.
    fn logged(format: LogFormat, text: &str) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = subscriber(EnvFilter::new("trace"), format, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::error_span!("handle", event = %text, later = tracing::field::Empty);
            span.record("later", text);
            let error: &(dyn std::error::Error + 'static) = &io::Error::other(text.to_owned());
            span.in_scope(|| {
                tracing::error!(event = %text, event_type = ?text, reason = text, error, "message {text}");
            });
        });
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    fn hostile() -> impl Strategy<Value = String> {
        let character = prop_oneof![
            prop::sample::select(vec![
                '\n', '\r', '\t', '\0', '\u{7}', '\u{1b}', '\u{7f}', '\u{85}', '\u{9b}', '\u{61c}',
                '\u{200e}', '\u{2028}', '\u{2029}', '\u{202e}', '\u{2066}', '\u{2069}', '"', '\\', '=', 'a',
            ]),
            any::<char>(),
        ];
        prop::collection::vec(character, 0..24).prop_map(|chars| chars.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_row_holds_an_event_is_one_safe_line(text in hostile()) {
            for format in [LogFormat::Text, LogFormat::Json] {
                let log = logged(format, &text);
                let line = log.strip_suffix('\n').expect("the line ends");
                prop_assert!(!line.contains(is_unsafe), "{line:?}");
                if matches!(format, LogFormat::Json) {
                    let json: serde_json::Value = serde_json::from_str(line).unwrap();
                    prop_assert_eq!(json["event"].as_str(), Some(text.as_str()));
                }
            }
        }
    }

    #[test]
    fn a_safe_text_is_logged_unchanged() {
        let line = logged(LogFormat::Text, "order.placed");
        let expected = r#"message order.placed event=order.placed event_type="order.placed" reason="order.placed" error=order.placed"#;
        assert!(line.contains(expected), "{line}");
        assert!(line.contains(r#"handle{event=order.placed later="order.placed"}"#), "{line}");
    }
}
