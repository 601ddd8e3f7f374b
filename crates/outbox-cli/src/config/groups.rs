//! The groups of settings that say how a relay works. What is not set is left to the library's defaults.
//!
//! The names of groups and settings are those of the outbox starter for Spring Boot, where there is such a setting there.

use clap::ValueEnum;
use outbox::{Backoff, Completion, OnDead, PurgeSettings, RelayBuilder, Unrouted};
use outbox_transports::Text;
use serde::{Deserialize, Serialize};

use super::count::{Bytes, Count};
use super::time::Time;

/// Who else may deliver from the same database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// This relay alone, by a lease on the whole table; another one stands by
    #[serde(alias = "single_node")]
    #[value(alias = "single_node")]
    SingleNode,
    /// Any number of relays share the work
    #[default]
    #[serde(alias = "multi_node")]
    #[value(alias = "multi_node")]
    MultiNode,
    /// As multi-node; events without an ordering key are ordered by their aggregate
    Ordered,
    /// The event log alone; another relay delivers the queue
    Log,
}

impl Mode {
    /// As it stands in the file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::SingleNode => "single-node",
            Mode::MultiNode => "multi-node",
            Mode::Ordered => "ordered",
            Mode::Log => "log",
        }
    }
}

/// What happens to events that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Done {
    /// They stay until they are purged
    Keep,
    /// Their rows are deleted
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Dead {
    Hold,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NoRoute {
    Leave,
    Dead,
    Retry,
}

/// Settings that are in no group.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct General {
    pub(crate) mode: Option<Mode>,
    pub(crate) migrate: Option<bool>,
    pub(crate) completion: Option<Done>,
    pub(crate) on_dead: Option<Dead>,
    pub(crate) unrouted: Option<NoRoute>,
}

/// Who calls publishers.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Dispatcher {
    pub(crate) workers: Option<Count>,
    pub(crate) workers_per_database: Option<Count>,
    pub(crate) queue_capacity: Option<Count>,
    pub(crate) queue_bytes: Option<Bytes>,
    pub(crate) max_payload: Option<Bytes>,
    pub(crate) handler_timeout: Option<Time<1>>,
    pub(crate) drain_timeout: Option<Time>,
    pub(crate) settle_linger: Option<Time>,
}

/// Who looks for due events.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Poller {
    pub(crate) interval: Option<Time<1>>,
    pub(crate) batch_size: Option<Count>,
    pub(crate) skip_recent: Option<Time>,
}

/// How events are held while they are in hand. A lease is renewed at a third of its time: below a second, a database that
/// is slow for a moment loses it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct ClaimLocking {
    pub(crate) lease: Option<Time<1_000>>,
    pub(crate) presence: Option<Time<1_000>>,
    pub(crate) owner_id: Option<Owner>,
}

/// When what failed is tried again.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Retry {
    pub(crate) max_attempts: Option<Count>,
    pub(crate) base_delay: Option<Time>,
    pub(crate) max_delay: Option<Time>,
    pub(crate) jitter: Option<bool>,
}

/// What is deleted, and when.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Purge {
    pub(crate) enabled: Option<bool>,
    pub(crate) retention: Option<Time>,
    pub(crate) interval: Option<Time<1>>,
    pub(crate) batch_size: Option<Count>,
    pub(crate) dead_retention: Option<Time>,
    pub(crate) inbox_retention: Option<Time>,
    pub(crate) attempts_retention: Option<Time>,
    pub(crate) log_retention: Option<Time>,
    pub(crate) audit_retention: Option<Time>,
}

/// How the event log is published.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Log {
    pub(crate) lease: Option<Time<100>>,
    pub(crate) watch: Option<Time<1>>,
    pub(crate) batch_size: Option<Count>,
    pub(crate) interval: Option<Time<1>>,
}

/// What is counted.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Metrics {
    pub(crate) prefix: Option<Prefix>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    pub(crate) general: General,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) poller: Poller,
    pub(crate) claim_locking: ClaimLocking,
    pub(crate) retry: Retry,
    pub(crate) purge: Purge,
    pub(crate) log: Log,
    pub(crate) metrics: Metrics,
}

impl Groups {
    pub(crate) fn mode(&self) -> Mode {
        self.general.mode.unwrap_or_default()
    }

    /// Tells a relay all of them.
    pub(crate) fn apply<S>(&self, mut relay: RelayBuilder<S>) -> RelayBuilder<S> {
        let General { mode: _, migrate: _, completion, on_dead, unrouted } = &self.general;
        if let Some(completion) = completion {
            relay = relay.completion(match completion {
                Done::Keep => Completion::Keep,
                Done::Delete => Completion::Delete,
            });
        }
        if let Some(on_dead) = on_dead {
            relay = relay.on_dead(match on_dead {
                Dead::Hold => OnDead::Hold,
                Dead::Skip => OnDead::Skip,
            });
        }
        if let Some(unrouted) = unrouted {
            relay = relay.unrouted(match unrouted {
                NoRoute::Leave => Unrouted::Leave,
                NoRoute::Dead => Unrouted::Dead,
                NoRoute::Retry => Unrouted::Retry,
            });
        }
        // Those of one database alone are for a fleet to hear.
        let Dispatcher {
            workers,
            workers_per_database: _,
            queue_capacity,
            queue_bytes,
            // Of the store: see `relay::source`.
            max_payload: _,
            handler_timeout,
            drain_timeout,
            settle_linger,
        } = &self.dispatcher;
        relay = set(relay, *workers, |relay, count| relay.workers(count.get()));
        relay = set(relay, *queue_capacity, |relay, count| relay.cold_capacity(count.get()));
        relay = set(relay, *queue_bytes, |relay, count| relay.queue_bytes(count.get()));
        relay = set(relay, *handler_timeout, |relay, time| relay.handler_timeout(time.0));
        relay = set(relay, *drain_timeout, |relay, time| relay.drain(time.0));
        relay = set(relay, *settle_linger, |relay, time| relay.settle_linger(time.0));
        let Poller { interval, batch_size, skip_recent } = &self.poller;
        relay = set(relay, *interval, |relay, time| relay.poll_interval(time.0));
        relay = set(relay, *batch_size, |relay, count| relay.batch(count.get()));
        relay = set(relay, *skip_recent, |relay, time| relay.skip_recent(time.0));
        let ClaimLocking { lease, presence, owner_id } = &self.claim_locking;
        relay = set(relay, *lease, |relay, time| relay.lease(time.0));
        relay = set(relay, *presence, |relay, time| relay.presence(time.0));
        relay = set(relay, owner_id.as_ref(), |relay, owner| relay.node(owner.0.as_str()));
        // The others are those of pairs: see `Topic::pace`.
        let Log { lease, watch, batch_size: _, interval: _ } = &self.log;
        relay = set(relay, *lease, |relay, time| relay.pair_lease(time.0));
        relay = set(relay, *watch, |relay, time| relay.log_watch(time.0));
        let Metrics { prefix } = &self.metrics;
        relay = set(relay, prefix.as_ref(), |relay, prefix| relay.metrics_prefix(prefix.0.as_str()));
        relay = relay.retry(self.retry.policy(&Retry::default()));
        self.purge.apply(relay)
    }
}

fn set<R, T>(relay: R, setting: Option<T>, tell: impl FnOnce(R, T) -> R) -> R {
    match setting {
        Some(setting) => tell(relay, setting),
        None => relay,
    }
}

impl Retry {
    /// With what is not set here taken from there.
    pub(crate) fn policy(&self, otherwise: &Retry) -> Backoff {
        let attempts = self.max_attempts.or(otherwise.max_attempts);
        let base = self.base_delay.or(otherwise.base_delay);
        let max = self.max_delay.or(otherwise.max_delay);
        let mut policy = Backoff::publishing();
        policy = set(policy, attempts, |policy, count| policy.max_attempts(count.get_u32()));
        policy = set(policy, base, |policy, time| policy.base(time.0));
        policy = set(policy, max, |policy, time| policy.max(time.0));
        if self.jitter.or(otherwise.jitter) == Some(false) { policy.no_jitter() } else { policy }
    }
}

impl Purge {
    fn apply<S>(&self, relay: RelayBuilder<S>) -> RelayBuilder<S> {
        let Purge {
            enabled,
            retention,
            interval,
            batch_size,
            dead_retention,
            inbox_retention,
            attempts_retention,
            log_retention,
            audit_retention,
        } = self;
        if *enabled == Some(false) {
            return relay.no_purge();
        }
        // Untouched, each mode has its own idea of what is purged.
        if *self == Purge::default() {
            return relay;
        }
        let mut purge = PurgeSettings::default();
        purge = set(purge, *retention, |purge, time| purge.retention(time.0));
        purge = set(purge, *interval, |purge, time| purge.every(time.0));
        purge = set(purge, *batch_size, |purge, count| purge.batch(count.get()));
        purge = set(purge, *inbox_retention, |purge, time| purge.inbox_retention(time.0));
        purge = set(purge, *dead_retention, |purge, time| purge.dead_retention(time.0));
        purge = set(purge, *attempts_retention, |purge, time| purge.attempts_retention(time.0));
        purge = set(purge, *log_retention, |purge, time| purge.log_retention(time.0));
        purge = set(purge, *audit_retention, |purge, time| purge.audit_retention(time.0));
        relay.purge(purge)
    }
}

/// The name under which this relay holds events.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(try_from = "Text", into = "String")]
pub(crate) struct Owner(pub(crate) String);

impl TryFrom<Text> for Owner {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        if (1..=100).contains(&text.as_str().chars().count()) {
            Ok(Self(text.as_str().to_owned()))
        } else {
            Err("it must have 1 to 100 characters".to_owned())
        }
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> Self {
        owner.0
    }
}

/// What the names of metrics start with.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(try_from = "Text", into = "String")]
pub(crate) struct Prefix(pub(crate) String);

impl TryFrom<Text> for Prefix {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let prefix = text.as_str();
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':');
        if prefix.starts_with(|c: char| c.is_ascii_alphabetic()) && prefix.chars().all(is_good) {
            Ok(Self(prefix.to_owned()))
        } else {
            Err("use letters, digits, `_`, `.` and `:`, a letter first".to_owned())
        }
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

impl<const MOST: u32> Serialize for Count<MOST> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.get_u32())
    }
}

impl<const MIN: u64> Serialize for Time<MIN> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
