//! Explains why an event has not been delivered yet.
//!
//! A pure function of the facts in the database ([`DeliveryFacts`]): no clock, no query.

mod display;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error::Error;
use crate::event::EventId;
use crate::handler::split_detail;
use crate::store::{Node, NodeId, RelayTask, Status, StoredEvent, TaskError, takers};

/// Maximum number of events counted before an event.
pub(crate) const MAX_COUNTED: u64 = 10_000;

/// Everything in the database that decides when an event is delivered.
#[derive(Clone, Debug, Default)]
pub struct DeliveryFacts {
    /// The database's time.
    pub now: DateTime<Utc>,
    /// The event, if it exists. Stores may leave out its payload and headers, and those of the
    /// events ahead: they do not affect the decision and may be large.
    pub event: Option<StoredEvent>,
    /// The first pending event before it in its ordering key.
    pub pending_ahead: Option<StoredEvent>,
    /// The first dead event before it in its ordering key.
    pub dead_ahead: Option<StoredEvent>,
    /// Number of free events that are due before it; counts up to 10,000.
    pub due_before: u64,
    /// Leader of the whole table: a `single_node` relay.
    pub leader: Option<NodeId>,
    /// Whether any event is leased now.
    pub any_leased: bool,
    /// When an event last became DONE or DEAD, among those still in the table.
    pub last_settled: Option<DateTime<Utc>>,
    /// Relays with a presence row, and their announced state.
    pub nodes: Vec<Node>,
}

/// Why an event has not been delivered yet, or how it was settled. From
/// [`Admin::explain`](crate::Admin::explain).
///
/// Its `Display` is a few sentences with advice. As JSON it has the fields below, with the field
/// `reason` in each reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The requested event.
    pub event_id: EventId,
    /// Time of the request, by the database's clock.
    pub asked_at: DateTime<Utc>,
    /// The event and its state; `None` if it does not exist.
    pub event: Option<EventFacts>,
    /// Why the event is not delivered, or how it was settled. The first reason is the decisive one;
    /// never empty.
    pub reasons: Vec<Reason>,
}

/// Facts about the event itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EventFacts {
    /// Its type, if it can be decoded.
    pub event_type: Option<String>,
    /// Sequence number in the table.
    pub seq: i64,
    /// Status.
    pub status: Status,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// Number of failed attempts.
    pub attempts: u32,
    /// When the database stored it.
    pub created_at: DateTime<Utc>,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The tables do not exist, or have another version than this build needs.
    Schema {
        /// The problem.
        problem: String,
    },
    /// No such event.
    Unknown,
    /// Delivered.
    Done {
        /// Time of the settlement.
        at: Option<DateTime<Utc>>,
        /// The node that settled it.
        by: Option<NodeId>,
    },
    /// Dead-lettered.
    Dead {
        /// Time of the settlement.
        since: Option<DateTime<Utc>>,
        /// The node that settled it.
        by: Option<NodeId>,
        /// Error of the last attempt.
        error: Option<String>,
        /// Number of failed attempts.
        attempts: u32,
    },
    /// Leased: it is being handled, or about to be.
    Held {
        /// Holder of the lease.
        by: NodeId,
        /// Expiry of the lease, unless it is renewed.
        until: DateTime<Utc>,
    },
    /// Leased by a relay that has vanished: its leases are about to be released.
    HeldByVanished {
        /// The relay.
        by: NodeId,
        /// When the relay was last seen.
        seen_at: DateTime<Utc>,
        /// When its leases are free at the latest: released by other relays, or expired.
        free_at: DateTime<Utc>,
    },
    /// The lease expired before the holder settled the event.
    LeaseRanOut {
        /// The holder.
        by: NodeId,
        /// Expiry of the lease.
        since: DateTime<Utc>,
    },
    /// Not due yet.
    NotDue {
        /// When it is due.
        at: DateTime<Utc>,
        /// Number of failed attempts; 0 if it was delayed, or snoozed by its handler.
        attempts: u32,
        /// Why it was last snoozed; `None` if it was written with a delay.
        error: Option<String>,
    },
    /// Expired: the next relay that takes it dead-letters it without handling it.
    Expired {
        /// Time of expiry.
        at: DateTime<Utc>,
    },
    /// Not decodable: the next relay that takes it dead-letters it.
    Undecodable {
        /// The problem.
        problem: String,
    },
    /// An earlier event of its ordering key is not settled, or is dead and blocks the key.
    Behind {
        /// That event, and why it is not delivered itself.
        event: Box<Explanation>,
    },
    /// No running relay routes it: it stays pending until a relay that routes it runs. While a
    /// `single_node` relay leads the table, only the leader counts: no other relay takes events.
    Unrouted {
        /// Its type.
        event_type: String,
        /// The type of its aggregate.
        aggregate_type: String,
        /// The running relays.
        relays: Vec<NodeId>,
        /// The leader of the table, if there is one.
        leader: Option<NodeId>,
    },
    /// Its destination is unavailable: the event waits until the destination is available again,
    /// and no attempt is counted.
    Outage {
        /// The destination, by the name of its publisher.
        destination: String,
        /// Start of the outage.
        since: DateTime<Utc>,
        /// The cause, as the relay reports it.
        error: String,
        /// The relays that report it.
        nodes: Vec<NodeId>,
    },
    /// A relay that would take it, or that holds it, reports that it fails to take or to settle
    /// events.
    RelayFails {
        /// The relay.
        relay: NodeId,
        /// The failing task.
        task: RelayTask,
        /// Time of the first failure, by the clock of the relay.
        since: DateTime<Utc>,
        /// The cause, as the relay reports it.
        error: String,
    },
    /// Due and free while a `single_node` relay leads the table: the leader has the event in
    /// memory, or reads it soon.
    WithLeader {
        /// The leader.
        leader: NodeId,
        /// When it became due.
        due_since: DateTime<Utc>,
        /// Number of free events that are due before it, if counted; up to 10,000.
        due_before: Option<u64>,
    },
    /// Due and free: it waits for a relay.
    Waiting {
        /// When it became due.
        due_since: DateTime<Utc>,
        /// Number of free events that are due before it, if counted; up to 10,000.
        due_before: Option<u64>,
        /// The relays that run and deliver, except those that report failures.
        relays: Vec<NodeId>,
        /// Whether delivery is active: such a relay runs, another event is leased, or an event was
        /// settled in the last minute.
        at_work: bool,
        /// When an event was last settled, among those still in the table.
        last_settled: Option<DateTime<Utc>>,
    },
}

/// A settlement within this time counts as active delivery.
const AT_WORK: chrono::Duration = chrono::Duration::minutes(1);

impl Explanation {
    /// Explains the event from the facts in the database.
    pub fn of(id: &EventId, delivery_facts: &DeliveryFacts) -> Self {
        let now = delivery_facts.now;
        let Some(event) = &delivery_facts.event else {
            return Self { event_id: id.clone(), asked_at: now, event: None, reasons: vec![Reason::Unknown] };
        };
        let reasons =
            Analysis { delivery_facts, event, due_before: Some(delivery_facts.due_before) }.reasons();
        Self { event_id: id.clone(), asked_at: now, event: Some(EventFacts::of(event)), reasons }
    }

    /// Explanation for tables that are missing or of another version.
    pub(crate) fn of_schema(id: &EventId, error: &Error) -> Self {
        let reasons = vec![Reason::Schema { problem: error.to_string() }];
        Self { event_id: id.clone(), asked_at: Utc::now(), event: None, reasons }
    }

    /// The decisive reason.
    pub fn reason(&self) -> &Reason {
        self.reasons.first().unwrap_or(&Reason::Unknown)
    }
}

impl EventFacts {
    fn of(stored: &StoredEvent) -> Self {
        let event = stored.event.as_ref().ok();
        Self {
            event_type: event.map(|event| event.event_type().as_str().to_owned()),
            seq: stored.seq,
            status: stored.status,
            ordering_key: event.and_then(|event| event.ordering_key()).map(str::to_owned),
            attempts: stored.attempts,
            created_at: stored.created_at,
        }
    }
}

/// An event and the facts around it.
struct Analysis<'a> {
    delivery_facts: &'a DeliveryFacts,
    event: &'a StoredEvent,
    /// Unknown for an event that is only ahead of the requested one.
    due_before: Option<u64>,
}

/// Error of the last attempt. Without the detail: an explanation is also shown to roles that may
/// not see payloads.
fn reason_of(event: &StoredEvent) -> Option<String> {
    event.last_error.as_deref().map(|error| split_detail(error).0.to_owned())
}

impl Analysis<'_> {
    fn reasons(&self) -> Vec<Reason> {
        let (event, now) = (self.event, self.delivery_facts.now);
        match event.status {
            Status::Done => return vec![Reason::Done { at: event.done_at, by: event.done_by.clone() }],
            Status::Dead => {
                return vec![Reason::Dead {
                    since: event.done_at,
                    by: event.done_by.clone(),
                    error: reason_of(event),
                    attempts: event.attempts,
                }];
            }
            Status::New | Status::Retry => {}
        }
        match event.lease.clone() {
            Some((by, until)) if until > now => {
                let mut reasons = vec![self.held(by.clone(), until)];
                reasons.extend(self.failing(RelayTask::Settle).filter(|(relay, _)| *relay == by).map(fails));
                return reasons;
            }
            Some((by, since)) => {
                let mut reasons = vec![Reason::LeaseRanOut { by, since }];
                reasons.extend(self.failing(RelayTask::Take).map(fails));
                return reasons;
            }
            None => {}
        }
        let mut reasons = Vec::new();
        if event.available_at > now {
            let (at, attempts, error) = (event.available_at, event.attempts, reason_of(event));
            reasons.push(Reason::NotDue { at, attempts, error });
        }
        reasons.extend(self.behind());
        reasons.extend(self.outages());
        reasons.extend(self.unrouted());
        if reasons.is_empty() {
            reasons.extend(self.waiting());
            reasons.extend(self.failing(RelayTask::Take).map(fails));
        }
        // Outcome of the event once it is taken.
        match &event.event {
            Err(error) => reasons.insert(0, Reason::Undecodable { problem: error.reason.clone() }),
            Ok(event) => {
                if let Some(at) = event.expires_at().filter(|at| *at <= now) {
                    reasons.insert(0, Reason::Expired { at });
                }
            }
        }
        reasons
    }

    /// The reason for a lease that has not expired.
    fn held(&self, by: NodeId, until: DateTime<Utc>) -> Reason {
        let DeliveryFacts { now, nodes, .. } = self.delivery_facts;
        let Some(vanished) = nodes.iter().find(|node| node.node == by && !node.is_running()) else {
            return Reason::Held { by, until };
        };
        // A relay looks for vanished relays as often as it announces itself.
        let looks = |node: &&Node| node.is_running() && node.state.active && node.state.presence_ms.is_some();
        let next_look = nodes.iter().filter(looks).map(|node| Node::announces_every(node.presence())).min();
        let released_at = next_look
            .filter(|_| vanished.is_to_be_released())
            .and_then(|time| now.checked_add_signed(chrono::Duration::from_std(time).ok()?));
        let seen_at =
            chrono::Duration::from_std(vanished.seen).ok().and_then(|seen| now.checked_sub_signed(seen));
        Reason::HeldByVanished {
            by,
            seen_at: seen_at.unwrap_or(vanished.started_at),
            free_at: released_at.map_or(until, |at| at.min(until)),
        }
    }

    /// Earlier events of the key, the first one first: with [`OnDead::Hold`](crate::OnDead) the
    /// dead event blocks the key, with `OnDead::Skip` the pending one.
    fn behind(&self) -> Vec<Reason> {
        let ahead = [&self.delivery_facts.dead_ahead, &self.delivery_facts.pending_ahead];
        let before = |other: &&StoredEvent| other.seq < self.event.seq;
        let mut ahead: Vec<&StoredEvent> = ahead.into_iter().flatten().filter(before).collect();
        ahead.sort_by_key(|event| event.seq);
        ahead.into_iter().map(|event| Reason::Behind { event: Box::new(self.of_other(event)) }).collect()
    }

    fn of_other(&self, event: &StoredEvent) -> Explanation {
        let id = match &event.event {
            Ok(event) => event.id().clone(),
            Err(error) => error.id.clone(),
        };
        let other = Analysis { delivery_facts: self.delivery_facts, event, due_before: None };
        let (asked_at, facts) = (self.delivery_facts.now, EventFacts::of(event));
        Explanation { event_id: id, asked_at, event: Some(facts), reasons: other.reasons() }
    }

    /// Unavailable destinations that the event may be waiting for, each once.
    fn outages(&self) -> Vec<Reason> {
        let Ok(event) = &self.event.event else { return Vec::new() };
        let mut reasons: Vec<Reason> = Vec::new();
        for node in self.delivery_facts.nodes.iter().filter(|node| node.is_running()) {
            for outage in &node.state.outages {
                if !outage.types.iter().any(|of| event.event_type() == of.as_str()) {
                    continue;
                }
                let same = reasons.iter_mut().find_map(|reason| match reason {
                    Reason::Outage { destination, nodes, .. } if *destination == outage.destination => {
                        Some(nodes)
                    }
                    _ => None,
                });
                match same {
                    Some(nodes) => nodes.push(node.node.clone()),
                    None => reasons.push(Reason::Outage {
                        destination: outage.destination.clone(),
                        since: outage.since,
                        error: outage.reason.clone(),
                        nodes: vec![node.node.clone()],
                    }),
                }
            }
        }
        reasons
    }

    /// The reason for an event that no relay that may take it routes.
    fn unrouted(&self) -> Option<Reason> {
        let event = self.event.event.as_ref().ok()?;
        let (event_type, aggregate_type) = (event.event_type().as_str(), event.aggregate_type().as_str());
        let DeliveryFacts { nodes, leader, .. } = self.delivery_facts;
        let takers = takers(nodes, leader.as_ref());
        if takers.is_empty() || takers.iter().any(|node| node.state.routes.takes(event_type, aggregate_type))
        {
            return None;
        }
        Some(Reason::Unrouted {
            event_type: event_type.to_owned(),
            aggregate_type: aggregate_type.to_owned(),
            relays: takers.iter().map(|node| node.node.clone()).collect(),
            leader: leader.clone(),
        })
    }

    /// The relays that run and deliver.
    fn delivering(&self) -> impl Iterator<Item = &Node> {
        self.delivery_facts.nodes.iter().filter(|node| node.is_running() && node.state.active)
    }

    /// The delivering relays whose task fails, and their errors.
    fn failing(&self, task: RelayTask) -> impl Iterator<Item = (NodeId, TaskError)> {
        self.delivering()
            .filter_map(move |node| Some((node.node.clone(), node.state.health.problem(task)?.clone())))
    }

    /// The reason for a due and free event without an event ahead. `None` if all relays that could
    /// take it fail.
    fn waiting(&self) -> Option<Reason> {
        let (due_since, due_before) = (self.event.available_at, self.due_before);
        let DeliveryFacts { now, leader, any_leased, last_settled, .. } = self.delivery_facts;
        let takes = |node: &&Node| node.state.health.problem(RelayTask::Take).is_none();
        let relays: Vec<NodeId> = self.delivering().filter(takes).map(|node| node.node.clone()).collect();
        if relays.is_empty() && self.delivering().next().is_some() {
            return None;
        }
        Some(match leader.clone() {
            Some(leader) => Reason::WithLeader { leader, due_since, due_before },
            None => Reason::Waiting {
                due_since,
                due_before,
                at_work: !relays.is_empty()
                    || *any_leased
                    || last_settled.is_some_and(|at| *now - at < AT_WORK),
                relays,
                last_settled: *last_settled,
            },
        })
    }
}

fn fails((relay, TaskError { task, since, error, .. }): (NodeId, TaskError)) -> Reason {
    Reason::RelayFails { relay, task, since, error }
}

#[cfg(test)]
mod tests;
