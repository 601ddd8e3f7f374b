//! What is written, and what should become of it.

use outbox::{Event, EventBuilder};
use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use crate::arena::Arena;

/// One event: its id, and all that its handler needs to know. It is the payload, and the writer's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Its id.
    pub id: String,
    /// What is done with it.
    pub kind: Kind,
    /// Its ordering key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How many attempts fail.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fails: u32,
    /// How often its handler panics; an attempt each.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub panics: u32,
    /// How often its handler ends its whole process.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub aborts: u32,
    /// How long its handler takes, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takes: u32,
    /// The join that it is a step of, or follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What kind of event it is: its type, and what its handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Handled, perhaps after some failures.
    Plain,
    /// Its handler says that it is dead.
    Doomed,
    /// Its handler fails until there are no attempts left.
    Worn,
    /// Booked by a handler in the transaction that settles it.
    Book,
    /// Of a type that only relays of this generation and later ones know.
    Generation(u32),
    /// What follows a join that is complete.
    Then,
    /// What follows a join that failed.
    Sorry,
    /// An event of the log.
    Log,
    /// Published to a webhook instead of the broker.
    Hook,
}

impl Kind {
    /// The type of such events.
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

    /// Whether it must be dead in the end.
    pub fn must_die(self) -> bool {
        matches!(self, Self::Doomed | Self::Worn)
    }
}

/// From how many on an event that ends its process is taken for what it is, and buried: once before anybody suspects it, and three
/// times after that.
pub const KILLER: u32 = 4;

impl Spec {
    /// A plain one.
    pub fn new(id: impl Into<String>, kind: Kind) -> Self {
        let id = id.into();
        Self { id, kind, key: None, fails: 0, panics: 0, aborts: 0, takes: 0, join: None }
    }

    /// The event.
    pub fn event(&self) -> EventBuilder {
        let event = Event::new(self.kind.event_type()).id(self.id.as_str()).json(self);
        match &self.key {
            Some(key) => event.ordering_key(key.as_str()),
            None => event,
        }
    }

    /// Whether it ends every process that handles it.
    pub fn is_killer(&self) -> bool {
        self.aborts >= KILLER
    }
}

/// What a writer mixes.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// For which arena.
    pub arena: Arena,
    /// How long slow handlers take, in milliseconds, if there are any.
    pub slow: Option<u32>,
    /// Whether handlers may panic.
    pub panics: bool,
    /// Whether handlers may end their process.
    pub aborts: bool,
    /// The newest type of events.
    pub generation: u32,
    /// Whether some events go to a webhook.
    pub hooks: bool,
}

/// A transaction to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxPlan {
    /// Its events; those that follow a join are the last two.
    pub events: Vec<Spec>,
    /// Whether the first of them are the steps of a join.
    pub fan_out: bool,
    /// Whether to take it back.
    pub roll_back: bool,
    /// How long to wait before its end, in milliseconds.
    pub hold: u64,
}

/// How many keys there are.
const KEYS: u32 = 12;

impl Mix {
    /// A transaction, with ids that begin with this.
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

    /// One to three, of one key or of none.
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
            // Its transaction is open meanwhile, and SQLite has one writer.
            spec.takes = 0;
        }
        if kind == Kind::Plain {
            spec.fails = if rng.random_ratio(1, 12) { rng.random_range(1..3) } else { 0 };
            spec.panics = u32::from(self.panics && rng.random_ratio(1, 100));
            // Where one leads all, nothing is delivered for a quarter of a minute after each.
            let (one_in, killers) = if self.arena == Arena::Single { (5_000, 10) } else { (1_000, 5) };
            if self.aborts && rng.random_ratio(1, one_in) {
                spec.aborts = if rng.random_ratio(1, killers) { KILLER } else { 1 };
            }
        }
        spec
    }

    /// The steps of a join, and the two that may follow.
    fn fan_out(&self, rng: &mut SmallRng, prefix: &str) -> Vec<Spec> {
        let mut events: Vec<Spec> = (0..rng.random_range(2..6))
            .map(|n| {
                let mut step = self.one(rng, format!("{prefix}-{n}"));
                // Nobody can say beforehand what follows if a step may be buried.
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
