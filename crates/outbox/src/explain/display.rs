//! Display of an explanation: the reasons, and advice.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};

use super::{Explanation, MAX_COUNTED, Reason};
use crate::escape::{Escaped, shell_word};
use crate::event::EventId;

/// One or two sentences per reason, each on its own line, then the advice.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event {}", Escaped(&self.event_id))?;
        if let Some(event_type) = self.event.as_ref().and_then(|event| event.event_type.as_ref()) {
            write!(f, " ({})", Escaped(event_type))?;
        }
        for (n, reason) in self.reasons.iter().enumerate() {
            f.write_str(if n == 0 { " " } else { "\nIt also " })?;
            ReasonText { reason, now: self.asked_at }.fmt(f)?;
        }
        match self.advice() {
            Some(advice) => write!(f, "\n{advice}"),
            None => Ok(()),
        }
    }
}

impl Explanation {
    /// Advice, if there is any.
    pub fn advice(&self) -> Option<String> {
        self.reasons.iter().find_map(|reason| reason.advice(self))
    }
}

impl Reason {
    /// Advice for this reason, if there is any.
    fn advice(&self, of: &Explanation) -> Option<String> {
        Some(match self {
            Reason::Schema { .. } => "Migrate the tables: `outbox migrate`.".to_owned(),
            Reason::Unknown => {
                "Check the id, the database and the table. Where done events are deleted, or were purged, \
                                it may have been delivered before."
                    .to_owned()
            }
            Reason::Dead { .. } => {
                format!("When the cause is fixed, replay it: `{}`.", replay(&of.event_id))
            }
            Reason::Behind { event } => match event.reason() {
                Reason::Dead { .. } => format!(
                    "Replay that event when its cause is fixed (`{}`), or skip it in the dashboard. \
                     Relays with `on_dead` = skip deliver the later events without it.",
                    replay(&event.event_id)
                ),
                reason => return reason.advice(event),
            },
            Reason::Unrouted { event_type, leader: None, .. } => format!(
                "Run a relay with a handler or a route for {}. A relay with `unrouted` = dead dead-letters such events instead.",
                Escaped(event_type)
            ),
            Reason::Unrouted { event_type, leader: Some(_), .. } => format!(
                "Add a handler or a route for {} to the leading relay, or run all relays as multi_node: \
                 then each takes the events that it routes.",
                Escaped(event_type)
            ),
            Reason::Outage { destination, .. } => format!(
                "Bring {} back; the relay probes it every few seconds and resumes by itself.",
                Escaped(destination)
            ),
            Reason::RelayFails { relay, .. } => format!(
                "Fix the cause: {relay} retries by itself. `outbox status` shows the health of all relays."
            ),
            Reason::HeldByVanished { by, .. } => {
                let node = shell_word(by.as_str());
                format!(
                    "If that relay has ended for certain, release its leases now: `outbox nodes release {node}`."
                )
            }
            Reason::Waiting { at_work: false, .. } => {
                "Start a relay, or find out why it does not run: `outbox relay`.".to_owned()
            }
            _ => return None,
        })
    }
}

/// The command that replays an event. Writers choose ids, so the id is quoted for a shell.
fn replay(id: &EventId) -> String {
    let end_of_flags = if id.as_str().starts_with('-') { "-- " } else { "" };
    format!("outbox dead replay {end_of_flags}{}", shell_word(id.as_str()))
}

/// A reason as the rest of a sentence that begins with the event.
struct ReasonText<'a> {
    reason: &'a Reason,
    now: DateTime<Utc>,
}

impl fmt::Display for ReasonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ago = |at: DateTime<Utc>| format!("{} ago ({})", span(self.now - at), exact(at));
        let since = |at: DateTime<Utc>| format!("for {} (since {})", span(self.now - at), exact(at));
        match self.reason {
            Reason::Schema { problem } => write!(f, "cannot be read: {}.", Escaped(problem)),
            Reason::Unknown => {
                f.write_str("is not in the table: it never was, or it was cancelled, deleted or purged.")
            }
            Reason::Done { at, by } => {
                f.write_str("is DONE: it was delivered")?;
                at.map_or(Ok(()), |at| write!(f, " {}", ago(at)))?;
                by.as_ref().map_or(Ok(()), |by| write!(f, ", by {}", Escaped(by)))?;
                f.write_str(".")
            }
            Reason::Dead { since: at, by, error, attempts } => {
                write!(f, "is DEAD")?;
                at.map_or(Ok(()), |at| write!(f, ", and has been {}", since(at)))?;
                by.as_ref().map_or(Ok(()), |by| write!(f, ", dead-lettered by {}", Escaped(by)))?;
                write!(f, ", after {}: {}.", counted(*attempts, "failed attempt"), cause(error.as_deref()))
            }
            Reason::Held { by, until } => write!(
                f,
                "is being handled, or about to be: {} holds it for another {} (until {}), or longer if it renews its lease.",
                Escaped(by),
                span(*until - self.now),
                exact(*until)
            ),
            Reason::HeldByVanished { by, seen_at, free_at } => write!(
                f,
                "is held by relay {}, which vanished {}; its leases are released in at most {}.",
                Escaped(by),
                ago(*seen_at),
                span(*free_at - self.now)
            ),
            Reason::LeaseRanOut { by, since: at } => write!(
                f,
                "was held by {}, whose lease expired {}: that node crashed, hangs, or lost the database. \
                 The next relay takes the event over as a suspect: the event may have caused the crash.",
                Escaped(by),
                ago(*at)
            ),
            Reason::NotDue { at, attempts: 0, error: None } => {
                write!(
                    f,
                    "is not due for another {}: it was written to be delivered at {} or later.",
                    span(*at - self.now),
                    exact(*at)
                )
            }
            Reason::NotDue { at, attempts: 0, error } => write!(
                f,
                "was snoozed and is not due for another {} (until {}): {}.",
                span(*at - self.now),
                exact(*at),
                cause(error.as_deref())
            ),
            Reason::NotDue { at, attempts, error } => write!(
                f,
                "waits for retry number {attempts}, due in {} ({}). The last attempt failed: {}.",
                span(*at - self.now),
                exact(*at),
                cause(error.as_deref())
            ),
            Reason::Expired { at } => {
                write!(
                    f,
                    "expired {}: the relay that takes it dead-letters it without handling it.",
                    ago(*at)
                )
            }
            Reason::Undecodable { problem } => {
                write!(f, "cannot be decoded: {}. The relay that takes it dead-letters it.", Escaped(problem))
            }
            Reason::Behind { event } => {
                write!(f, "waits behind an earlier event of its ordering key: {}", Escaped(&event.event_id))?;
                if let Some(event_type) = event.event.as_ref().and_then(|event| event.event_type.as_ref()) {
                    write!(f, " ({})", Escaped(event_type))?;
                }
                f.write_str(", which ")?;
                ReasonText { reason: event.reason(), now: self.now }.fmt(f)
            }
            Reason::WithLeader { leader, due_since, due_before } => {
                write!(
                    f,
                    "has been due {}, and {} leads this table alone (single_node): ",
                    since(*due_since),
                    Escaped(leader)
                )?;
                f.write_str("the event is in its memory, or is read at its next poll")?;
                before(f, *due_before)
            }
            Reason::Unrouted { event_type, aggregate_type, relays, leader } => {
                f.write_str("waits for a relay that routes it: ")?;
                let (event_type, aggregate_type) = (Escaped(event_type), Escaped(aggregate_type));
                if let Some(leader) = leader {
                    return write!(
                        f,
                        "{} leads this table alone (single_node), and does not route event type {event_type} \
                         of aggregate type {aggregate_type}.",
                        Escaped(leader)
                    );
                }
                let named: Vec<&str> = relays.iter().map(crate::store::NodeId::as_str).take(3).collect();
                let more = if relays.len() > 3 { " and others" } else { "" };
                write!(
                    f,
                    "no running relay routes event type {event_type} of aggregate type {aggregate_type}; running: {}{more}.",
                    Escaped(named.join(", "))
                )
            }
            Reason::Outage { destination, since: at, error, nodes } => {
                let nodes: Vec<&str> = nodes.iter().map(crate::store::NodeId::as_str).collect();
                write!(
                    f,
                    "goes to {}, which has not been available {}, reported by {}: {}.",
                    Escaped(destination),
                    since(*at),
                    Escaped(nodes.join(", ")),
                    cause(Some(error))
                )
            }
            Reason::RelayFails { relay, task, since: at, error } => {
                let (waits, fails) = match task {
                    crate::store::RelayTask::Settle => ("waits to be settled", "settle events"),
                    _ => ("waits to be taken", "take events"),
                };
                write!(
                    f,
                    "{waits}: relay {} has failed to {fails} {}: {}.",
                    Escaped(relay),
                    since(*at),
                    cause(Some(error))
                )
            }
            Reason::Waiting { due_since, due_before, relays, at_work, last_settled } => {
                write!(
                    f,
                    "has been due {}, and is free: it waits for a relay to take it",
                    since(*due_since)
                )?;
                before(f, *due_before)?;
                match (at_work, last_settled) {
                    (true, _) if relays.is_empty() => f.write_str(" A relay is active."),
                    (true, _) => {
                        let named: Vec<&str> =
                            relays.iter().map(crate::store::NodeId::as_str).take(3).collect();
                        let more = if relays.len() > 3 { " and others" } else { "" };
                        write!(f, " Active relays: {}{more}.", Escaped(named.join(", ")))
                    }
                    (false, Some(at)) => write!(
                        f,
                        " There is no sign of a running relay: no event is leased, and the last one was settled {}.",
                        ago(*at)
                    ),
                    (false, None) => f.write_str(
                        " There is no sign of a running relay: no event is leased, and none was settled.",
                    ),
                }
            }
        }
    }
}

fn before(f: &mut fmt::Formatter<'_>, due_before: Option<u64>) -> fmt::Result {
    match due_before {
        None => f.write_str("."),
        Some(0) => f.write_str("; no event is due before it."),
        Some(1) => f.write_str("; 1 free event is due before it."),
        Some(n) if n >= MAX_COUNTED => write!(f, "; {MAX_COUNTED} free events or more are due before it."),
        Some(n) => write!(f, "; {n} free events are due before it."),
    }
}

fn counted(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// An error as part of a sentence: its first line without a final full stop.
fn cause(error: Option<&str>) -> Escaped<&str> {
    let first = error.and_then(|error| error.lines().next()).unwrap_or_default();
    Escaped(match first.trim_end_matches('.') {
        "" => "no error text",
        error => error,
    })
}

fn exact(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// A duration in the largest sufficiently precise unit.
fn span(time: chrono::Duration) -> String {
    let seconds = time.num_seconds().max(0);
    match seconds {
        0 if time.num_milliseconds() > 0 => format!("{} ms", time.num_milliseconds()),
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", (seconds + 30) / 60),
        7_200..172_800 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
    }
}
