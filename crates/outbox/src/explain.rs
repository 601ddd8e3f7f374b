//! Why an event has not been delivered yet.
//!
//! A pure decision over what the database says ([`Circumstances`]): no clock, no query.

mod words;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error::Error;
use crate::event::EventId;
use crate::handler::split_detail;
use crate::store::{Node, NodeId, RelayTask, Status, StoredEvent, TaskError, takers};

/// How many events before one are counted at most.
pub(crate) const MOST_COUNTED: u64 = 10_000;

/// Everything in the database that decides when an event is delivered.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// The database's time.
    pub now: DateTime<Utc>,
    /// The event, if it is there. Stores may leave out its payload and headers, and those of the events ahead: nothing is
    /// decided by them, and they may be large.
    pub event: Option<StoredEvent>,
    /// The first pending event before it in its ordering key.
    pub pending_ahead: Option<StoredEvent>,
    /// The first dead event before it in its ordering key.
    pub dead_ahead: Option<StoredEvent>,
    /// How many free events are due before it; no more than 10,000 are counted.
    pub due_before: u64,
    /// Who leads the whole table now: a `single_node` relay.
    pub leader: Option<NodeId>,
    /// Whether anybody holds any event now.
    pub somebody_holds: bool,
    /// When an event last became DONE or DEAD, of those that are still there.
    pub last_settled: Option<DateTime<Utc>>,
    /// The relays that were seen, and what they say of themselves.
    pub nodes: Vec<Node>,
}

/// Why an event has not been delivered yet, or what became of it. From [`Admin::explain`](crate::Admin::explain).
///
/// Shown, it is a few plain sentences with what to do. As JSON it is the fields below, with a `reason` in each of the reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The event that was asked for.
    pub event_id: EventId,
    /// When, by the database's clock.
    pub asked_at: DateTime<Utc>,
    /// The event as it stands; `None` if it is not there.
    pub event: Option<EventFacts>,
    /// What stands in its way, or what became of it. The first is what counts now; never empty.
    pub reasons: Vec<Reason>,
}

/// What is told of the event itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EventFacts {
    /// Its type, if it can be read.
    pub event_type: Option<String>,
    /// Its place in the table.
    pub seq: i64,
    /// Where it stands.
    pub status: Status,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// How many times a handler has failed.
    pub attempts: u32,
    /// When the database stored it.
    pub created_at: DateTime<Utc>,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The tables are not there, or not of the version that this build works with.
    Schema {
        /// What is wrong with them.
        problem: String,
    },
    /// No such event.
    Unknown,
    /// It was delivered.
    Done {
        /// When.
        at: Option<DateTime<Utc>>,
        /// By whom.
        by: Option<NodeId>,
    },
    /// It was given up.
    Dead {
        /// When.
        since: Option<DateTime<Utc>>,
        /// By whom.
        by: Option<NodeId>,
        /// Why.
        error: Option<String>,
        /// After how many failed attempts.
        attempts: u32,
    },
    /// Somebody holds it: it is being handled, or about to be.
    Held {
        /// Who.
        by: NodeId,
        /// Until when, unless renewed.
        until: DateTime<Utc>,
    },
    /// A relay holds it that has vanished: its leases are about to be released.
    HeldByVanished {
        /// Which relay.
        by: NodeId,
        /// When it was last seen.
        seen_at: DateTime<Utc>,
        /// When its leases are free at the latest: when others release them, or when they run out.
        free_at: DateTime<Utc>,
    },
    /// Whoever held it did not come back.
    LeaseRanOut {
        /// Who.
        by: NodeId,
        /// Since when it is free.
        since: DateTime<Utc>,
    },
    /// Its time has not come.
    NotDue {
        /// When it comes.
        at: DateTime<Utc>,
        /// How many attempts have failed; 0 if it was delayed, or put off by its handler.
        attempts: u32,
        /// Why it was last put off; `None` if it was written with a delay.
        error: Option<String>,
    },
    /// It expired: the next relay that takes it buries it without handling it.
    Expired {
        /// When.
        at: DateTime<Utc>,
    },
    /// It cannot be read: the next relay that takes it buries it.
    Undecodable {
        /// What is wrong with it.
        problem: String,
    },
    /// An earlier event of its ordering key is not settled, or is dead and holds its key.
    Behind {
        /// That event, and why it is not delivered itself.
        event: Box<Explanation>,
    },
    /// No running relay routes it: it stays pending until a relay that does runs. While a `single_node` relay leads the table,
    /// only that one counts: no other relay takes events.
    Unrouted {
        /// Its type.
        event_type: String,
        /// The type of its aggregate.
        aggregate_type: String,
        /// The running relays.
        relays: Vec<NodeId>,
        /// The relay that leads the table, if one does.
        leader: Option<NodeId>,
    },
    /// It goes to a destination that is not available: it stays where it is until that comes back, and no attempt is counted.
    Outage {
        /// The destination, by the name of its publisher.
        destination: String,
        /// Since when.
        since: DateTime<Utc>,
        /// Why, as the relay tells it.
        error: String,
        /// Which relays see it so.
        nodes: Vec<NodeId>,
    },
    /// A relay that would take it, or that holds it, reports that it fails to take or to settle events.
    RelayFails {
        /// Which relay.
        relay: NodeId,
        /// Which of its tasks fails.
        task: RelayTask,
        /// Since when, by the clock of the relay.
        since: DateTime<Utc>,
        /// Why, as the relay tells it.
        error: String,
    },
    /// It is due and free, and a `single_node` relay leads the table: it has the event in its memory, or reads it soon.
    WithLeader {
        /// Which relay.
        leader: NodeId,
        /// Since when it is due.
        due_since: DateTime<Utc>,
        /// How many free events are due before it, if that was counted; no more than 10,000 are.
        due_before: Option<u64>,
    },
    /// It is due and free: it waits for a relay.
    Waiting {
        /// Since when it is due.
        due_since: DateTime<Utc>,
        /// How many free events are due before it, if that was counted; no more than 10,000 are.
        due_before: Option<u64>,
        /// The relays that run and deliver, without those that report that they fail.
        relays: Vec<NodeId>,
        /// Whether anybody is at work: such a relay, or somebody who holds other events, or has settled one in the last minute.
        at_work: bool,
        /// When an event was last settled, of those that are still there.
        last_settled: Option<DateTime<Utc>>,
    },
}

/// Whoever settled something within this time counts as being at work.
const AT_WORK: chrono::Duration = chrono::Duration::minutes(1);

impl Explanation {
    /// Decides by what the database says.
    pub fn of(id: &EventId, circumstances: &Circumstances) -> Self {
        let now = circumstances.now;
        let Some(event) = &circumstances.event else {
            return Self { event_id: id.clone(), asked_at: now, event: None, reasons: vec![Reason::Unknown] };
        };
        let reasons = Around { circumstances, event, due_before: Some(circumstances.due_before) }.reasons();
        Self { event_id: id.clone(), asked_at: now, event: Some(EventFacts::of(event)), reasons }
    }

    /// The tables are not as they should be.
    pub(crate) fn of_schema(id: &EventId, error: &Error) -> Self {
        let reasons = vec![Reason::Schema { problem: error.to_string() }];
        Self { event_id: id.clone(), asked_at: Utc::now(), event: None, reasons }
    }

    /// The reason that counts now.
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

/// An event, and what is around it.
struct Around<'a> {
    circumstances: &'a Circumstances,
    event: &'a StoredEvent,
    /// Not known of an event that is only in the way of another.
    due_before: Option<u64>,
}

/// Why the event last failed. Without the detail: an explanation is also for roles that see no payloads.
fn reason_of(event: &StoredEvent) -> Option<String> {
    event.last_error.as_deref().map(|error| split_detail(error).0.to_owned())
}

impl Around<'_> {
    fn reasons(&self) -> Vec<Reason> {
        let (event, now) = (self.event, self.circumstances.now);
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
        // What will become of it once it is taken.
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

    /// Held by a lease that has not run out.
    fn held(&self, by: NodeId, until: DateTime<Utc>) -> Reason {
        let Circumstances { now, nodes, .. } = self.circumstances;
        let Some(vanished) = nodes.iter().find(|node| node.node == by && !node.is_running()) else {
            return Reason::Held { by, until };
        };
        // A relay looks for those that have vanished as often as it announces itself.
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

    /// What is before it in its key, the first one first: where dead events hold their key it is that one, where they are
    /// skipped it is the pending one.
    fn behind(&self) -> Vec<Reason> {
        let ahead = [&self.circumstances.dead_ahead, &self.circumstances.pending_ahead];
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
        let other = Around { circumstances: self.circumstances, event, due_before: None };
        let (asked_at, facts) = (self.circumstances.now, EventFacts::of(event));
        Explanation { event_id: id, asked_at, event: Some(facts), reasons: other.reasons() }
    }

    /// Destinations that it may be waiting for, each once.
    fn outages(&self) -> Vec<Reason> {
        let Ok(event) = &self.event.event else { return Vec::new() };
        let mut reasons: Vec<Reason> = Vec::new();
        for node in self.circumstances.nodes.iter().filter(|node| node.is_running()) {
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

    /// No relay that may take it routes it.
    fn unrouted(&self) -> Option<Reason> {
        let event = self.event.event.as_ref().ok()?;
        let (event_type, aggregate_type) = (event.event_type().as_str(), event.aggregate_type().as_str());
        let Circumstances { nodes, leader, .. } = self.circumstances;
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
        self.circumstances.nodes.iter().filter(|node| node.is_running() && node.state.active)
    }

    /// Those of them whose task fails, and how.
    fn failing(&self, task: RelayTask) -> impl Iterator<Item = (NodeId, TaskError)> {
        self.delivering()
            .filter_map(move |node| Some((node.node.clone(), node.state.health.problem(task)?.clone())))
    }

    /// Due and free, and nothing before it. `None` if all relays that could take it fail to.
    fn waiting(&self) -> Option<Reason> {
        let (due_since, due_before) = (self.event.available_at, self.due_before);
        let Circumstances { now, leader, somebody_holds, last_settled, .. } = self.circumstances;
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
                    || *somebody_holds
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
