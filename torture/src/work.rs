//! The workload: events, and the expected outcome of each.

use outbox::{Event, EventBuilder};
use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use crate::arena::Arena;

/// One event: its id and everything that its handler needs. The spec is the event's payload and is
/// recorded by the writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The event id.
    pub id: String,
    /// Kind of event.
    pub kind: Kind,
    /// The ordering key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Number of attempts that fail.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fails: u32,
    /// Number of attempts that panic.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub panics: u32,
    /// Number of attempts that abort the process.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub aborts: u32,
    /// How long its handler takes, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takes: u32,
    /// The join of which the event is a step or a follow-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Kind of an event: determines its type and what its handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Handled, possibly after some failures.
    Plain,
    /// Dead-lettered by its handler.
    Doomed,
    /// Its handler fails until the attempts are used up.
    Worn,
    /// Booked by a handler in the transaction that settles it.
    Book,
    /// Of a type that only relays of this generation or later know.
    Generation(u32),
    /// Follow-up of a completed join.
    Then,
    /// Follow-up of a failed join.
    Sorry,
    /// An event of the log.
    Log,
    /// Published to a webhook instead of the broker.
    Hook,
}

impl Kind {
    /// The event type.
    pub fn event_type(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Doomed => "doomed".to_owned(),
            Self::Worn => "worn".to_owned(),
            Self::Book => "book".to_owned(),
            Self::Generation(n) => format!("generation.{n}"),
            Self::Then => "then".to_owned(),
            Self::Sorry => "sorry".to_owned(),
            Self::Log => "log".to_owned(),
            Self::Hook => "hook".to_owned(),
        }
    }

    /// Whether the event must be dead-lettered at the end.
    pub fn must_die(self) -> bool {
        matches!(self, Self::Doomed | Self::Worn)
    }
}

/// Number of aborts after which an event is dead-lettered for crashing its processes: one before it
/// is suspected, and three after that.
pub const KILLER: u32 = 4;

impl Spec {
    /// A spec without failures.
    pub fn new(id: impl Into<String>, kind: Kind) -> Self {
        let id = id.into();
        Self { id, kind, key: None, fails: 0, panics: 0, aborts: 0, takes: 0, join: None }
    }

    /// Builds the event.
    pub fn event(&self) -> EventBuilder {
        let event = Event::new(self.kind.event_type()).id(self.id.as_str()).json(self);
        match &self.key {
            Some(key) => event.ordering_key(key.as_str()),
            None => event,
        }
    }

    /// Whether the event aborts every process that handles it.
    pub fn is_killer(&self) -> bool {
        self.aborts >= KILLER
    }
}

/// Parameters of a writer's workload.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// The arena.
    pub arena: Arena,
    /// Duration of slow handlers, in milliseconds, if there are any.
    pub slow: Option<u32>,
    /// Whether handlers may panic.
    pub panics: bool,
    /// Whether handlers may abort their process.
    pub aborts: bool,
    /// The newest generation of event types.
    pub generation: u32,
    /// Whether some events go to a webhook.
    pub hooks: bool,
}

/// A transaction to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxPlan {
    /// The events; the last two are the follow-ups if there is a join.
    pub events: Vec<Spec>,
    /// Whether the events form a join.
    pub fan_out: bool,
    /// Whether to roll the transaction back.
    pub roll_back: bool,
    /// How long to wait before the end of the transaction, in milliseconds.
    pub hold: u64,
}

/// Number of ordering keys.
const KEYS: u32 = 12;

impl Mix {
    /// Plans a transaction whose event ids begin with this prefix.
    pub fn plan_tx(&self, rng: &mut SmallRng, prefix: &str) -> TxPlan {
        let roll_back = rng.random_ratio(1, 10);
        let hold = if rng.random_ratio(1, 20) { rng.random_range(10..80) } else { 0 };
        let (events, fan_out) = match self.arena {
            Arena::Multi | Arena::Single if rng.random_ratio(1, 25) => (self.fan_out(rng, prefix), true),
            Arena::Multi if rng.random_ratio(1, 8) => (log(rng, prefix), false),
            _ => (self.some(rng, prefix), false),
        };
        TxPlan { events, fan_out, roll_back, hold }
    }

    /// One to three events, all with the same key or without a key.
    fn some(&self, rng: &mut SmallRng, prefix: &str) -> Vec<Spec> {
        let key = rng.random_bool(0.5).then(|| format!("key-{}", rng.random_range(0..KEYS)));
        let count = rng.random_range(1..=3);
        (0..count).map(|n| Spec { key: key.clone(), ..self.one(rng, format!("{prefix}-{n}")) }).collect()
    }

    fn one(&self, rng: &mut SmallRng, id: String) -> Spec {
        if !self.arena.has_handlers() {
            let hook = self.hooks && rng.random_ratio(1, 4);
            return Spec::new(id, if hook { Kind::Hook } else { Kind::Plain });
        }
        let kind = match rng.random_range(0..100) {
            0..3 => Kind::Doomed,
            3..5 => Kind::Worn,
            5..13 => Kind::Book,
            13..20 => Kind::Generation(self.generation),
            _ => Kind::Plain,
        };
        let mut spec = Spec::new(id, kind);
        let slow = self.slow.filter(|_| rng.random_ratio(1, 400));
        spec.takes = slow.unwrap_or_else(|| rng.random_range(0..15));
        if kind == Kind::Book {
            // The handler's transaction stays open meanwhile, and SQLite has a single writer.
            spec.takes = 0;
        }
        if kind == Kind::Plain {
            spec.fails = if rng.random_ratio(1, 12) { rng.random_range(1..3) } else { 0 };
            spec.panics = u32::from(self.panics && rng.random_ratio(1, 100));
            // With a single leader nothing is delivered for 15 s after each abort.
            let (one_in, killers) = if self.arena == Arena::Single { (5_000, 10) } else { (1_000, 5) };
            if self.aborts && rng.random_ratio(1, one_in) {
                spec.aborts = if rng.random_ratio(1, killers) { KILLER } else { 1 };
            }
        }
        spec
    }

    /// The steps of a join and its two follow-ups.
    fn fan_out(&self, rng: &mut SmallRng, prefix: &str) -> Vec<Spec> {
        let mut events: Vec<Spec> = (0..rng.random_range(2..6))
            .map(|n| {
                let mut step = self.one(rng, format!("{prefix}-{n}"));
                // The follow-up could not be predicted if a step may be dead-lettered for crashes.
                step.aborts = 0;
                step
            })
            .collect();
        events.push(Spec::new(format!("{prefix}-t"), Kind::Then));
        events.push(Spec::new(format!("{prefix}-s"), Kind::Sorry));
        for event in &mut events {
            event.join = Some(prefix.to_owned());
        }
        events
    }
}

fn log(rng: &mut SmallRng, prefix: &str) -> Vec<Spec> {
    (0..rng.random_range(1..4)).map(|n| Spec::new(format!("{prefix}-{n}"), Kind::Log)).collect()
}
