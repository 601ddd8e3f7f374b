//! Conformance suite for transports, with one test per case. The test file of a transport
//! implements [`Harness`] for its server:
//!
//! ```ignore
//! mod common;
//! common::conformance_tests!(NatsHarness);
//! ```
#![allow(dead_code, reason = "each test file uses the part that its server supports")]

pub mod cases;
mod log_capture;
pub mod outages;
mod relay;
pub mod soak;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Event, EventResult, Failure, Outgoing, PublishError, Publisher};
use outbox_transports::{Format, Guarantees};

/// User name that the server accepts, if it authenticates users.
pub const USER: &str = "ada";
/// The user's password, which must never be shown.
pub const PASSWORD: &str = "correcthorse42";
/// A wrong password, which must not be shown either: it may be the right one elsewhere.
pub const WRONG_PASSWORD: &str = "batterystaple7";

/// Longest time without progress of a healthy server; the machine may be busy.
pub const MAX_STALL: Duration = Duration::from_secs(60);

/// A server of one kind, a destination on it that no other test uses, and access to the received
/// messages.
#[async_trait]
pub trait Harness: Send + Sync + Sized + 'static {
    /// Guarantees that the transport declares.
    const GUARANTEES: Guarantees;

    /// Prefix of CloudEvents attributes in binary mode.
    const CE_PREFIX: &'static str = "ce-";

    /// Whether the server requires [`USER`] and [`PASSWORD`].
    const CHECKS_PASSWORDS: bool = true;

    /// Whether confirmed messages survive a crash, and not only a regular stop.
    const SURVIVES_CRASHES: bool = true;

    /// Whether a batch fails as soon as its connection breaks. Otherwise the client waits for the
    /// server.
    const FAILS_FAST: bool = true;

    /// Opens a harness, or returns `None` if the server is not installed.
    async fn open(sharing: Sharing) -> Option<Self>;

    /// Creates a publisher to the destination.
    fn publisher(&self, options: &PublisherOptions) -> Arc<dyn Publisher>;

    /// `Debug` output of the publisher and its settings.
    fn debug_output(&self) -> String;

    /// Returns the messages that have arrived at the destination since the harness was opened, in
    /// order. Waits until there are `count` messages or none has arrived for [`MAX_STALL`], and
    /// then briefly for more.
    async fn received(&self, count: usize) -> Vec<Received>;

    /// Starts reading messages in the background, if the server does not retain a large number of
    /// them.
    fn watch(&mut self) {}

    /// Name of [`Destination::Missing`]; `None` if no destination can be missing.
    fn missing_name(&self) -> Option<String>;

    /// Whether [`Destination::Missing`] is an outage of the destination. Otherwise it is the
    /// event's failure.
    const MISSING_IS_AN_OUTAGE: bool = true;

    /// Creates [`Destination::Missing`].
    async fn create_missing(&self) {}

    /// Host and port of the server.
    fn address(&self) -> String;

    /// Creates a publisher to another host and port, with or without TLS; `None` if the transport
    /// has no TLS here.
    fn publisher_at(&self, address: &str, tls: bool) -> Option<Arc<dyn Publisher>>;

    /// Size in bytes of a payload that is too large.
    fn oversized_payload(&self) -> usize;

    /// Stops the server regularly.
    fn stop(&mut self);

    /// Kills the server.
    fn kill(&mut self);

    /// Starts the server again with its persisted data. Returns once it accepts connections.
    fn start(&mut self);

    /// Makes the server hang; `false` if that is not possible.
    fn freeze(&mut self) -> bool;

    /// Resumes a hanging server.
    fn thaw(&mut self);
}

/// Whether other tests may use the same server. Servers that start slowly are shared where
/// possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The test does not disturb the server.
    Shared,
    /// The test stops, kills or freezes the server.
    Exclusive,
}

/// Options of a publisher.
#[derive(Clone, Debug)]
pub struct PublisherOptions {
    pub format: Format,
    /// Timeout of connecting and of a response.
    pub timeout: Duration,
    pub destination: Destination,
    pub password: &'static str,
}

/// Destination of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The destination that [`Harness::received`] reads.
    Existing,
    /// A destination that does not exist: [`Harness::missing_name`].
    Missing,
}

impl Default for PublisherOptions {
    /// Long timeouts: the machine may be busy.
    fn default() -> Self {
        let (format, destination) = (Format::Plain, Destination::Existing);
        Self { format, timeout: Duration::from_secs(20), destination, password: PASSWORD }
    }
}

impl PublisherOptions {
    /// Short timeouts, for tests of outages.
    pub fn short_timeout() -> Self {
        Self { timeout: Duration::from_secs(2), ..Self::default() }
    }
}

/// `source` in settings and CloudEvents.
pub const SOURCE: &str = "/tests";

/// A received message.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The id for deduplication, from the protocol's own field or from a header.
    pub id: String,
    pub content_type: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Received {
    /// Looks up a header, ignoring case: some protocols do not preserve it.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }
}

/// Polls until the function returns a value, where there is no signal to await. Fails with its last
/// error after this time.
pub async fn poll<T, E: std::fmt::Debug>(
    what: &str,
    limit: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let end = Instant::now() + limit;
    loop {
        let error = match attempt().await {
            Ok(value) => return value,
            Err(error) => error,
        };
        assert!(Instant::now() < end, "not within {limit:?}: {what}: {error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A wait for messages, which ends early after [`MAX_STALL`] without one.
pub struct Wait {
    count: usize,
    seen: usize,
    since: Instant,
}

impl Wait {
    /// Waits for this number of messages.
    pub fn until(count: usize) -> Self {
        Self { count, seen: 0, since: Instant::now() }
    }

    /// How long to wait for the next message after `seen` messages: zero if the wait is over.
    pub fn remaining(&mut self, seen: usize) -> Duration {
        if seen >= self.count {
            return Duration::ZERO;
        }
        if seen > self.seen {
            (self.seen, self.since) = (seen, Instant::now());
        }
        MAX_STALL.saturating_sub(self.since.elapsed())
    }

    /// Returns whether the wait is over after `seen` messages. Pauses before the next poll if not.
    pub async fn is_over(&mut self, seen: usize) -> bool {
        let is_over = self.remaining(seen).is_zero();
        if !is_over {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        is_over
    }
}

/// An event with a number as its payload.
pub fn numbered(number: usize, key: Option<&str>) -> Outgoing {
    let event = Event::new("order.placed").json(&number);
    let event = match key {
        Some(key) => event.ordering_key(key),
        None => event,
    };
    Outgoing::new(event.build().expect("a whole event"))
}

/// An event with an incompressible payload of this many bytes.
pub fn of_size(bytes: usize, key: Option<&str>) -> Outgoing {
    let payload: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(31) % 251) as u8).collect();
    let event = Event::new("scan.made").bytes("application/octet-stream", payload);
    let event = match key {
        Some(key) => event.ordering_key(key),
        None => event,
    };
    Outgoing::new(event.build().expect("a whole event"))
}

pub fn ids(events: &[Outgoing]) -> Vec<String> {
    events.iter().map(|event| event.id().to_string()).collect()
}

pub fn is_dead(failure: &Failure) -> bool {
    *failure == Failure::dead(failure)
}

pub fn fates(error: &PublishError, count: usize) -> Vec<Option<EventResult>> {
    (0..count).map(|index| error.fate(index)).collect()
}

/// Asserts that the text contains neither password.
pub fn assert_no_secret(text: &str) {
    for password in [PASSWORD, WRONG_PASSWORD] {
        assert!(!text.contains(password), "a password is shown: {}", text.replace(password, "<PASSWORD>"));
    }
}

/// Defines one test per case for a harness.
#[macro_export]
macro_rules! conformance_tests {
    (without soak, $harness:ty) => {
        $crate::conformance_tests!(@ $harness, cases:
            every_payload_arrives_unchanged_with_its_id_headers_and_trace,
            a_batch_of_a_thousand_arrives_completely,
            concurrent_batches_arrive_completely,
            the_events_of_a_key_arrive_in_order_over_many_batches,
            a_duplicate_is_dropped_or_has_the_same_id,
            a_cloud_event_in_binary_mode_has_its_attributes_in_headers,
            a_cloud_event_in_structured_mode_is_one_object,
            an_oversized_event_is_dead_and_blocks_only_its_key,
            a_destination_that_does_not_exist_is_named,
            a_destination_that_is_created_later_is_used,
            the_reason_why_a_server_is_unavailable_is_reported,
            a_wrong_password_is_reported_without_showing_it,
            debug_output_contains_no_password,
            the_log_contains_no_password_and_no_payload
        );
        $crate::conformance_tests!(@ $harness, outages:
            a_stopped_server_is_unavailable_until_it_starts,
            a_confirmed_event_outlives_a_restart_and_the_publisher_recovers,
            a_confirmed_event_outlives_a_crash_and_the_publisher_recovers,
            a_hanging_server_is_unavailable_in_time_and_used_again_later
        );
    };
    ($harness:ty) => {
        $crate::conformance_tests!(without soak, $harness);
        $crate::conformance_tests!(@ $harness, soak: a_backlog_survives_an_outage);
    };
    (@ $harness:ty, $module:ident: $($case:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::common::$module::$case::<$harness>().await;
            }
        )+
    };
}
#[allow(unused_imports, reason = "only for the path `common::conformance_tests!`")]
pub use crate::conformance_tests;
