//! What every transport must do, with one test a case. A transport's test file says how to reach its server ([`Bed`]) and what it
//! is called:
//!
//! ```ignore
//! mod conformance;
//! conformance::tests!(NatsBed);
//! ```
#![allow(dead_code, reason = "each test file uses what its server can do")]

pub mod cases;
mod log;
pub mod outages;
mod relay;
pub mod soak;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Event, Failure, Fate, Outgoing, PublishError, Publisher};
use outbox_transports::{Format, Promises};

/// The user that a server lets in, where it knows users.
pub const USER: &str = "ada";
/// Its password, which must never be shown.
pub const PASSWORD: &str = "correcthorse42";
/// Another, which must not be shown either: it may be the right one of elsewhere.
pub const WRONG_PASSWORD: &str = "batterystaple7";

/// No step of a server that is well takes longer: the machine may be busy.
pub const LONGEST_STALL: Duration = Duration::from_secs(60);

/// A server of one kind, a destination on it that no other test has, and eyes at the other end.
#[async_trait]
pub trait Bed: Send + Sync + Sized + 'static {
    /// What the transport promises.
    const PROMISES: Promises;

    /// What stands before the attributes of a CloudEvent in binary mode.
    const CE_PREFIX: &'static str = "ce-";

    /// Whether the server asks for [`USER`] and [`PASSWORD`].
    const PASSWORDS: bool = true;

    /// Whether what it confirmed is there after a crash, not only after it was asked to end.
    const SURVIVES_CRASHES: bool = true;

    /// Whether a batch ends as soon as its connection breaks. Otherwise the client waits for the
    /// server.
    const BREAKS_AT_ONCE: bool = true;

    /// A bed, or `None` if there is no such server here.
    async fn open(share: Share) -> Option<Self>;

    /// A publisher to the bed's destination.
    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher>;

    /// The publisher and its settings, as `Debug` shows them.
    fn shown(&self) -> String;

    /// What has arrived at the bed's destination since it was opened, in order: waits until there
    /// is that much, or until none has come for [`LONGEST_STALL`], and then a moment for more.
    async fn received(&self, count: usize) -> Vec<Received>;

    /// Much is about to arrive: a server that does not keep all of it is read from now on.
    fn watch(&mut self) {}

    /// How [`Destination::Missing`] is called; `None` if there is no destination that could be missing.
    fn missing(&self) -> Option<String>;

    /// Whether [`Destination::Missing`] is an outage of the destination. Where it is an answer like others,
    /// it is the event's failure.
    const MISSING_IS_AN_OUTAGE: bool = true;

    /// Creates [`Destination::Missing`].
    async fn create_missing(&self) {}

    /// The host and port of the server.
    fn place(&self) -> String;

    /// A publisher to another host and port, by TLS or not; `None` if the transport has no TLS here.
    fn publisher_at(&self, place: &str, tls: bool) -> Option<Arc<dyn Publisher>>;

    /// So many bytes of payload are too many.
    fn too_big(&self) -> usize;

    /// Asks the server to end.
    fn stop(&mut self);

    /// Ends the server at once.
    fn kill(&mut self);

    /// Starts it again with what it has kept; returns when it takes connections.
    fn start(&mut self);

    /// Lets the server hang; `false` if that cannot be done.
    fn freeze(&mut self) -> bool;

    /// Lets it go on.
    fn thaw(&mut self);
}

/// Whether other tests may use the server too. Servers that start slowly are shared where they can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The server is left alone.
    Shared,
    /// It is stopped, killed or frozen.
    Own,
}

/// What a publisher is to be like.
#[derive(Clone, Debug)]
pub struct Wish {
    pub format: Format,
    /// For connecting, and for an answer.
    pub timeout: Duration,
    pub destination: Destination,
    pub password: &'static str,
}

/// Where to publish to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// What [`Bed::received`] watches.
    Usual,
    /// One that does not exist: [`Bed::missing`].
    Missing,
}

impl Default for Wish {
    /// Patient: the machine may be busy.
    fn default() -> Self {
        let (format, destination) = (Format::Plain, Destination::Usual);
        Self { format, timeout: Duration::from_secs(20), destination, password: PASSWORD }
    }
}

impl Wish {
    /// With less patience, where an outage is what is looked for.
    pub fn impatient() -> Self {
        Self { timeout: Duration::from_secs(2), ..Self::default() }
    }
}

/// What the source is called, in settings and in CloudEvents.
pub const SOURCE: &str = "/tests";

/// A message at the other end.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The id by which the protocol, or else a header, tells repeats.
    pub id: String,
    pub content_type: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Received {
    /// By its name in any case: some protocols do not keep it.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }
}

/// A wait for messages, which ends early after [`LONGEST_STALL`] without one.
pub struct Wait {
    count: usize,
    seen: usize,
    since: Instant,
}

impl Wait {
    /// Waits until there are so many messages.
    pub fn until(count: usize) -> Self {
        Self { count, seen: 0, since: Instant::now() }
    }

    /// How long to wait for the next message, now that so many have come: zero if the wait is over.
    pub fn left(&mut self, seen: usize) -> Duration {
        if seen >= self.count {
            return Duration::ZERO;
        }
        if seen > self.seen {
            (self.seen, self.since) = (seen, Instant::now());
        }
        LONGEST_STALL.saturating_sub(self.since.elapsed())
    }
}

/// An event with a number for its payload.
pub fn numbered(number: usize, key: Option<&str>) -> Outgoing {
    let event = Event::new("order.placed").json(&number);
    let event = match key {
        Some(key) => event.ordering_key(key),
        None => event,
    };
    Outgoing::new(event.build().expect("a whole event"))
}

/// An event with a payload of this many bytes, none of which can be left out by packing them well.
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

pub fn fates(error: &PublishError, count: usize) -> Vec<Option<Fate>> {
    (0..count).map(|index| error.fate(index)).collect()
}

/// Neither password is in it.
pub fn assert_no_secret(text: &str) {
    for password in [PASSWORD, WRONG_PASSWORD] {
        assert!(!text.contains(password), "a password is shown: {}", text.replace(password, "<PASSWORD>"));
    }
}

/// One test a case, for one kind of server.
#[macro_export]
macro_rules! conformance_tests {
    (without soak, $bed:ty) => {
        $crate::conformance_tests!(@ $bed, cases:
            every_payload_arrives_to_the_byte_with_its_id_headers_and_trace,
            a_batch_of_a_thousand_arrives_whole,
            batches_side_by_side_arrive_whole,
            the_events_of_a_key_arrive_in_order_over_many_batches,
            a_repeat_is_dropped_or_can_be_told_by_its_id,
            a_cloud_event_in_binary_mode_has_its_attributes_in_headers,
            a_cloud_event_in_structured_mode_is_one_object,
            what_is_too_big_fails_for_good_and_holds_back_its_key_only,
            a_destination_that_does_not_exist_is_named,
            a_destination_that_is_created_later_is_used_then,
            why_a_server_cannot_be_used_is_told,
            a_wrong_password_is_told_without_showing_it,
            nothing_that_is_shown_holds_a_password,
            nothing_that_is_logged_holds_a_password_or_a_payload
        );
        $crate::conformance_tests!(@ $bed, outages:
            a_server_that_is_down_is_unavailable_until_it_is_there,
            what_was_confirmed_outlives_a_restart_and_the_publisher_goes_on,
            what_was_confirmed_outlives_a_crash_and_the_publisher_goes_on,
            a_server_that_hangs_is_unavailable_in_time_and_used_again_later
        );
    };
    ($bed:ty) => {
        $crate::conformance_tests!(without soak, $bed);
        $crate::conformance_tests!(@ $bed, soak: a_backlog_gets_through_an_outage);
    };
    (@ $bed:ty, $room:ident: $($case:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::conformance::$room::$case::<$bed>().await;
            }
        )+
    };
}
#[allow(unused_imports, reason = "`conformance::tests!` reads better")]
pub use crate::conformance_tests as tests;
