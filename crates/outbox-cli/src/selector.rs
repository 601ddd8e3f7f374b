//! Flags that select the events of a command.

use outbox::EventId;
use outbox::store::{Filter, Status};

use crate::eprint_escaped;
use crate::time_args::Age;

/// Filters for events; each one narrows the selection. Texts are compared exactly, case included.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct EventSelector {
    /// Only this event type
    #[arg(long = "type", value_name = "TYPE", help_heading = "Selection")]
    event_type: Option<String>,

    /// Only this aggregate type
    #[arg(long, value_name = "TYPE", help_heading = "Selection")]
    aggregate_type: Option<String>,

    /// Only this aggregate
    #[arg(long, value_name = "ID", help_heading = "Selection")]
    aggregate_id: Option<String>,

    /// Only this tenant
    #[arg(long, value_name = "ID", help_heading = "Selection")]
    tenant: Option<String>,

    /// Only this ordering key
    #[arg(long, value_name = "KEY", help_heading = "Selection")]
    key: Option<String>,

    /// Only this correlation id
    #[arg(long, value_name = "ID", help_heading = "Selection")]
    correlation_id: Option<String>,

    /// Only events stored longer ago than this (dead events: dead-lettered), such as 90s, 5m, 2h or
    /// 7d
    #[arg(long, value_name = "TIME", help_heading = "Selection")]
    older_than: Option<Age>,

    /// Only events stored more recently than this (dead events: dead-lettered)
    #[arg(long, value_name = "TIME", help_heading = "Selection")]
    newer_than: Option<Age>,
}

impl EventSelector {
    /// Filter for events of any status; ages count from when an event was stored.
    pub(crate) fn any(&self) -> Filter {
        let (older, newer) = self.ages();
        Filter { older_than: older, newer_than: newer, ..self.common() }
    }

    /// Filter for dead events; ages count from when an event was dead-lettered.
    pub(crate) fn dead(&self) -> Filter {
        let (older, newer) = self.ages();
        Filter { status: Some(Status::Dead), settled_before: older, settled_within: newer, ..self.common() }
    }

    /// Whether no filter is set, so that all events are selected.
    pub(crate) fn is_everything(&self) -> bool {
        self.any() == Filter::default()
    }

    fn ages(&self) -> (Option<std::time::Duration>, Option<std::time::Duration>) {
        (self.older_than.map(|age| age.0), self.newer_than.map(|age| age.0))
    }

    fn common(&self) -> Filter {
        Filter {
            event_type: self.event_type.clone(),
            aggregate_type: self.aggregate_type.clone(),
            aggregate_id: self.aggregate_id.clone(),
            tenant_id: self.tenant.clone(),
            ordering_key: self.key.clone(),
            correlation_id: self.correlation_id.clone(),
            ..Filter::default()
        }
    }
}

/// Flags for paging through the selected events.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Page {
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Paging")]
    limit: u32,

    /// Continue after this SEQ, the last one of the previous page
    #[arg(long, value_name = "SEQ", help_heading = "Paging")]
    pub(crate) after: Option<i64>,
}

impl Page {
    pub(crate) fn limit(self) -> usize {
        self.limit as usize
    }

    /// Prints how to get the next page, if there may be one.
    pub(crate) fn more(self, shown: usize, last: impl std::fmt::Display) {
        if shown == self.limit() {
            eprint_escaped(format_args!("There may be more: add --after {last}"));
        }
    }
}

/// Event ids of the command line, not trimmed: a writer may have given an event an id that ends in
/// a blank.
pub(crate) fn ids(texts: &[String]) -> Vec<EventId> {
    texts.iter().map(|text| EventId::from(text.as_str())).collect()
}
