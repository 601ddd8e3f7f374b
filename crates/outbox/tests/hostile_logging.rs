//! Log lines of the library with any subscriber: whichever ids and types a writer chooses, an event
//! is one log line.
//!
//! A separate test binary: a process has one subscriber.

#[path = "common/log_lines.rs"]
mod log_lines;

use log_lines::LogLines;
use outbox::escape::is_unsafe;
use outbox::{Context, Failure, Outbox, Result, TracingPublisher, Unrouted};
use tracing_subscriber::filter::LevelFilter;

/// A forged line, escape sequences, CSI as one character, right-to-left override, a line separator.
const FORGED: &str = "y\n2026-11-17T04:00:00Z ERROR signed in\u{1b}]0;x\u{7}\u{9b}2J\u{202e}z\u{2028}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_lines_of_hostile_events_are_one_safe_line_each() -> Result<()> {
    let lines = LogLines::capture(LevelFilter::TRACE);
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    // Written by SQL: the builder refuses some of these texts.
    let mut tx = outbox.begin().await?;
    for (id, event_type, expires_at) in [
        ("good", "good", None),
        ("bad", "bad", None),
        ("out", "out", None),
        ("unrouted", "", None),
        ("expired", "", Some("2020-01-01 00:00:00.000000")),
    ] {
        let (id, event_type) = (format!("{id}{}", &FORGED[..20]), format!("{event_type}{FORGED}"));
        sqlx::query("INSERT INTO outbox_event (event_id, event_type, payload, expires_at, correlation_id) VALUES ($1, $2, '1', $3, $2)")
            .bind(id)
            .bind(event_type)
            .bind(expires_at)
            .execute(&mut *tx)
            .await
            .expect("SQLite accepts the row");
    }
    tx.commit().await?;
    let relay = outbox
        .single_node()
        .unrouted(Unrouted::Dead)
        .on_type(format!("good{FORGED}"), async |_: Context| tracing::info!("inside of a handler"))
        .on_type(format!("bad{FORGED}"), async |_: Context| Err::<(), _>(Failure::dead(FORGED)))
        .forward([format!("out{FORGED}")], TracingPublisher::new())
        .start()
        .await?;
    relay.idle().await?;
    relay.stop().await?;
    let text = lines.text();
    for message in ["handled", "event is dead", "event is dead: expired", "event published", "no handler"] {
        assert!(text.contains(message), "no {message:?} in {text}");
    }
    let of_events = text.lines().filter(|line| line.contains("signed in") || line.contains("event="));
    for line in of_events {
        assert!(!line.contains(is_unsafe), "{line:?}");
        assert!(!line.starts_with("2026-11-17T04:00:00Z ERROR signed in"), "a forged line: {line:?}");
    }
    assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{2028}']), "{text:?}");
    Ok(())
}
