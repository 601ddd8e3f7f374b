//! The settings groups of the library. An unset setting keeps the library's default.
//!
//! Groups and settings have the names of the outbox starter for Spring Boot where it has such a
//! setting.

use serde::{Deserialize, Serialize};

use super::count::{Bytes, Count, Factor};
use super::mode::WrittenMode;
use super::time::Time;
use crate::handler::Unrouted;
use crate::log::PacingSettings;
use crate::relay::{Mode, PurgeSettings, RelayBuilder, RelaySource};
use crate::retry::Backoff;
use crate::store::{Completion, OnDead};
use crate::text::Text;

/// `completion`: the rows of events that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WrittenCompletion {
    Keep,
    Delete,
}

/// `on-dead`: the later events of a dead event's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WrittenOnDead {
    Hold,
    Skip,
}

/// `unrouted`: events without a handler or a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WrittenUnrouted {
    Leave,
    Dead,
    Retry,
}

/// Settings that are in no group.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct General {
    pub mode: Option<WrittenMode>,
    pub migrate: Option<bool>,
    pub completion: Option<WrittenCompletion>,
    pub on_dead: Option<WrittenOnDead>,
    pub unrouted: Option<WrittenUnrouted>,
}

/// How handlers and publishers are called.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Dispatcher {
    pub workers: Option<Count>,
    pub workers_per_database: Option<Count>,
    pub queue_capacity: Option<Count>,
    pub hot_queue_capacity: Option<Count>,
    pub queue_bytes: Option<Bytes>,
    pub max_payload: Option<Bytes>,
    pub handler_timeout: Option<Time<1>>,
    pub drain_timeout: Option<Time>,
    pub settle_linger: Option<Time>,
}

/// How due events are found.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Poller {
    pub interval: Option<Time<1>>,
    pub batch_size: Option<Count>,
    pub skip_recent: Option<Time>,
}

/// How events are leased. A lease is renewed at a third of its duration: with less than a second, a
/// briefly slow database loses the lease.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ClaimLocking {
    /// Has no effect: the modes that need leases always have them. `false` in such a mode is a
    /// mistake.
    pub enabled: Option<bool>,
    pub lease: Option<Time<1_000>>,
    pub presence: Option<Time<1_000>>,
    pub owner_id: Option<Owner>,
}

/// When a failed event is retried.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Retry {
    pub max_attempts: Option<Count>,
    pub base_delay: Option<Time>,
    pub max_delay: Option<Time>,
    pub jitter: Option<bool>,
}

/// Which rows are deleted, and when.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct PurgeGroup {
    pub enabled: Option<bool>,
    pub retention: Option<Time>,
    pub interval: Option<Time<1>>,
    pub batch_size: Option<Count>,
    pub delete_undelivered: Option<bool>,
    pub dead_retention: Option<Time>,
    pub inbox_retention: Option<Time>,
    pub attempts_retention: Option<Time>,
    pub log_retention: Option<Time>,
    pub audit_retention: Option<Time>,
}

/// How the event log is published.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct LogGroup {
    pub lease: Option<Time<100>>,
    pub watch: Option<Time<1>>,
    pub batch_size: Option<Count<100_000>>,
    pub interval: Option<Time<1>>,
    pub timeout: Option<Time<1>>,
}

/// How the waits of the log's publishers grow while there is nothing to publish.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct IdleBackoff {
    pub enabled: Option<bool>,
    pub threshold: Option<Count>,
    pub multiplier: Option<Factor>,
    pub max: Option<Time<1>>,
}

/// The names of metrics.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct MetricsGroup {
    pub prefix: Option<Prefix>,
}

/// All groups.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    pub general: General,
    pub dispatcher: Dispatcher,
    pub poller: Poller,
    pub claim_locking: ClaimLocking,
    pub retry: Retry,
    pub purge: PurgeGroup,
    pub log: LogGroup,
    pub backoff: IdleBackoff,
    pub metrics: MetricsGroup,
}

impl Groups {
    pub fn mode(&self) -> Mode {
        self.general.mode.unwrap_or_default().0
    }

    /// Applies all settings except the mode to a relay.
    pub fn apply<D: RelaySource>(&self, mut relay: RelayBuilder<D>) -> RelayBuilder<D> {
        let General { mode: _, migrate: _, completion, on_dead, unrouted } = &self.general;
        relay = set(relay, *completion, |relay, completion| relay.completion(completion.into()));
        relay = set(relay, *on_dead, |relay, on_dead| relay.on_dead(on_dead.into()));
        relay = set(relay, *unrouted, |relay, unrouted| relay.unrouted(unrouted.into()));
        let Dispatcher {
            workers,
            // For a fleet.
            workers_per_database: _,
            queue_capacity,
            hot_queue_capacity,
            queue_bytes,
            // For the store.
            max_payload: _,
            handler_timeout,
            drain_timeout,
            settle_linger,
        } = &self.dispatcher;
        relay = set(relay, *workers, |relay, count| relay.workers(count.get()));
        relay = set(relay, *queue_capacity, |relay, count| relay.cold_capacity(count.get()));
        relay = set(relay, *hot_queue_capacity, |relay, count| relay.hot_capacity(count.get()));
        relay = set(relay, *queue_bytes, |relay, count| relay.queue_bytes(count.get()));
        relay = set(relay, *handler_timeout, |relay, time| relay.handler_timeout(time.0));
        relay = set(relay, *drain_timeout, |relay, time| relay.drain(time.0));
        relay = set(relay, *settle_linger, |relay, time| relay.settle_linger(time.0));
        let Poller { interval, batch_size, skip_recent } = &self.poller;
        relay = set(relay, *interval, |relay, time| relay.poll_interval(time.0));
        relay = set(relay, *batch_size, |relay, count| relay.batch(count.get()));
        relay = set(relay, *skip_recent, |relay, time| relay.skip_recent(time.0));
        let ClaimLocking { enabled: _, lease, presence, owner_id } = &self.claim_locking;
        relay = set(relay, *lease, |relay, time| relay.lease(time.0));
        relay = set(relay, *presence, |relay, time| relay.presence(time.0));
        relay = set(relay, owner_id.as_ref(), |relay, owner| relay.node(owner.0.as_str()));
        let MetricsGroup { prefix } = &self.metrics;
        relay = set(relay, prefix.as_ref(), |relay, prefix| relay.metrics_prefix(prefix.0.as_str()));
        if self.retry != Retry::default() {
            let none = Retry::default();
            let policy = |default| self.retry.policy(&none, default);
            relay = relay.retry_by_kind(policy(Backoff::default()), policy(Backoff::publishing()));
        }
        self.purge.apply(self.apply_log(relay), self.mode())
    }

    fn apply_log<D: RelaySource>(&self, mut relay: RelayBuilder<D>) -> RelayBuilder<D> {
        let LogGroup { lease, watch, batch_size, interval, timeout } = &self.log;
        relay = set(relay, *lease, |relay, time| relay.subscription_lease(time.0));
        relay = set(relay, *watch, |relay, time| relay.log_watch(time.0));
        let IdleBackoff { enabled, threshold, multiplier, max } = &self.backoff;
        let threshold = match enabled {
            Some(false) => Some(u32::MAX),
            _ => threshold.map(Count::get_u32),
        };
        relay.subscription_defaults(PacingSettings {
            batch: batch_size.map(Count::get),
            interval: interval.map(|time| time.0),
            timeout: timeout.map(|time| time.0),
            idle_after: threshold,
            idle_multiplier: multiplier.map(Factor::get),
            idle_max: max.map(|time| time.0),
            ..PacingSettings::default()
        })
    }
}

fn set<R, T>(to: R, setting: Option<T>, apply: impl FnOnce(R, T) -> R) -> R {
    match setting {
        Some(setting) => apply(to, setting),
        None => to,
    }
}

impl Retry {
    /// The policy: unset settings are taken from `otherwise`, and then from `default`.
    pub fn policy(&self, otherwise: &Retry, default: Backoff) -> Backoff {
        let attempts = self.max_attempts.or(otherwise.max_attempts);
        let base = self.base_delay.or(otherwise.base_delay);
        let max = self.max_delay.or(otherwise.max_delay);
        let mut policy = default;
        policy = set(policy, attempts, |policy, count| policy.max_attempts(count.get_u32()));
        policy = set(policy, base, |policy, time| policy.base(time.0));
        policy = set(policy, max, |policy, time| policy.max(time.0));
        if self.jitter.or(otherwise.jitter) == Some(false) { policy.no_jitter() } else { policy }
    }
}

impl PurgeGroup {
    fn apply<D: RelaySource>(&self, relay: RelayBuilder<D>, mode: Mode) -> RelayBuilder<D> {
        let PurgeGroup {
            enabled,
            retention,
            interval,
            batch_size,
            delete_undelivered,
            dead_retention,
            inbox_retention,
            attempts_retention,
            log_retention,
            audit_retention,
        } = self;
        if *enabled == Some(false) {
            return relay.no_purge();
        }
        // The default of the mode. A writer-only relay is started for purging alone.
        if *self == PurgeGroup::default() && mode != Mode::WriterOnly {
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
        if *delete_undelivered == Some(true) {
            purge = purge.delete_undelivered();
        }
        relay.purge(purge)
    }
}

impl From<WrittenCompletion> for Completion {
    fn from(written: WrittenCompletion) -> Self {
        match written {
            WrittenCompletion::Keep => Completion::Keep,
            WrittenCompletion::Delete => Completion::Delete,
        }
    }
}

impl From<WrittenOnDead> for OnDead {
    fn from(written: WrittenOnDead) -> Self {
        match written {
            WrittenOnDead::Hold => OnDead::Hold,
            WrittenOnDead::Skip => OnDead::Skip,
        }
    }
}

impl From<WrittenUnrouted> for Unrouted {
    fn from(written: WrittenUnrouted) -> Self {
        match written {
            WrittenUnrouted::Leave => Unrouted::Leave,
            WrittenUnrouted::Dead => Unrouted::Dead,
            WrittenUnrouted::Retry => Unrouted::Retry,
        }
    }
}

/// The name under which a relay holds leases.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(try_from = "Text", into = "String")]
pub struct Owner(pub String);

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

/// Prefix of metric names.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(try_from = "Text", into = "String")]
pub struct Prefix(pub String);

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
