//! Which events a command is about: the flags that select them.

use outbox::EventId;
use outbox::store::{Filter, Status};

use crate::age::Age;
use crate::note;

/// Each narrows the selection. Texts are compared as they are, upper and lower case apart.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct Which {
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

    /// Only events stored (dead ones: that died) longer ago than this, such as 90s, 5m, 2h or 7d
    #[arg(long, value_name = "TIME", help_heading = "Selection")]
    older_than: Option<Age>,

    /// Only events stored (dead ones: that died) more recently than this
    #[arg(long, value_name = "TIME", help_heading = "Selection")]
    newer_than: Option<Age>,
}

impl Which {
    /// Any events; ages count from when they were stored.
    pub(crate) fn any(&self) -> Filter {
        let (older, newer) = self.ages();
        Filter { older_than: older, newer_than: newer, ..self.common() }
    }

    /// Dead events; ages count from when they died.
    pub(crate) fn dead(&self) -> Filter {
        let (older, newer) = self.ages();
        Filter { status: Some(Status::Dead), settled_before: older, settled_within: newer, ..self.common() }
    }

    /// Whether nothing was selected, so that everything is.
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

/// How much of what was selected is shown.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Page {
    /// How many to show at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Paging")]
    limit: u32,

    /// Go on after this SEQ, the last one of the page before
    #[arg(long, value_name = "SEQ", help_heading = "Paging")]
    pub(crate) after: Option<i64>,
}

impl Page {
    pub(crate) fn limit(self) -> usize {
        self.limit as usize
    }

    /// How to see more, if there may be more.
    pub(crate) fn more(self, shown: usize, last: impl std::fmt::Display) {
        if shown == self.limit() {
            note(format_args!("There may be more: add --after {last}"));
        }
    }
}

/// Ids of events on the command line, as they are: a writer may have given an event an id that ends in a blank.
pub(crate) fn ids(texts: &[String]) -> Vec<EventId> {
    texts.iter().map(|text| EventId::from(text.as_str())).collect()
}
