//! Filters for events. Each field has a fixed name; values are bound as parameters and never become
//! part of a statement.

use outbox::store::{Filter, PageRequest, SharedStore, StatusGroup};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::age::Age;
use crate::problem::{ApiResult, Problem};
use crate::text;
use crate::views::Count;

/// Selects dead events. A field that is not set matches every event.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"event_type": "order.placed", "within": "2h"}))]
pub(crate) struct DeadFilter {
    /// Only this event type.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    pub(crate) event_type: Option<String>,
    /// Only this aggregate type.
    #[schema(min_length = 1, max_length = 64, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    pub(crate) aggregate_type: Option<String>,
    /// Only this aggregate id.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    pub(crate) aggregate_id: Option<String>,
    /// Only this tenant.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    pub(crate) tenant_id: Option<String>,
    /// Only this ordering key.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    pub(crate) ordering_key: Option<String>,
    /// Only this correlation id.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    pub(crate) correlation_id: Option<String>,
    /// Only events that were dead-lettered more recently than this.
    pub(crate) within: Option<Age>,
    /// Only events that were dead-lettered longer ago than this.
    pub(crate) before: Option<Age>,
}

impl DeadFilter {
    /// Whether the filter matches every dead event.
    pub(crate) fn is_empty(&self) -> bool {
        self.texts().iter().all(|(_, text, _)| text.is_none())
            && self.within.is_none()
            && self.before.is_none()
    }

    fn texts(&self) -> [(&'static str, Option<&str>, usize); 6] {
        [
            ("event_type", self.event_type.as_deref(), 255),
            ("aggregate_type", self.aggregate_type.as_deref(), 64),
            ("aggregate_id", self.aggregate_id.as_deref(), 255),
            ("tenant_id", self.tenant_id.as_deref(), 255),
            ("ordering_key", self.ordering_key.as_deref(), 255),
            ("correlation_id", self.correlation_id.as_deref(), 255),
        ]
    }

    /// Converts to the filter of a store.
    pub(crate) fn filter(&self) -> ApiResult<Filter> {
        for (name, value, longest) in self.texts() {
            let checked = value.map_or(Ok(()), |value| text::check(name, value, longest));
            checked.map_err(|problem| Problem::invalid(problem.detail()))?;
        }
        Ok(Filter {
            event_type: self.event_type.clone(),
            aggregate_type: self.aggregate_type.clone(),
            aggregate_id: self.aggregate_id.clone(),
            tenant_id: self.tenant_id.clone(),
            ordering_key: self.ordering_key.clone(),
            correlation_id: self.correlation_id.clone(),
            settled_within: self.within.map(|age| age.0),
            settled_before: self.before.map(|age| age.0),
            ..Filter::default()
        })
    }

    /// The filter as details of an audit entry.
    pub(crate) fn audit_details(&self) -> serde_json::Value {
        let texts = self.texts();
        let mut details: serde_json::Map<String, serde_json::Value> = texts
            .iter()
            .filter_map(|(name, value, _)| Some(((*name).to_owned(), (*value)?.into())))
            .collect();
        for (name, age) in [("within", self.within), ("before", self.before)] {
            details.extend(age.map(|age| (name.to_owned(), format!("{age:?}").into())));
        }
        details.into()
    }
}

/// Maximum count of matching events before a replay or purge.
const MAX_COUNT: u64 = 10_000;

/// Rows scanned for the count, page by page.
const PAGE: usize = 1_000;
const SCAN_LIMIT: usize = 20_000;
const PAGES: usize = 10;

/// Counts matching events with a status. Bounded: stops at ten thousand matches, or after two
/// hundred thousand scanned rows.
pub(crate) async fn count(
    store: &SharedStore,
    status_group: StatusGroup,
    filter: &Filter,
) -> ApiResult<Count> {
    let mut request = PageRequest {
        status_group,
        filter: filter.clone(),
        limit: PAGE,
        scan_limit: SCAN_LIMIT,
        ..PageRequest::default()
    };
    let mut count = 0;
    for _ in 0..PAGES {
        let page = store.page(&request).await?;
        count += page.rows.len() as u64;
        if page.next.is_none() {
            return Ok(Count { count, more: false });
        }
        if count >= MAX_COUNT {
            break;
        }
        request.after = page.next;
    }
    Ok(Count { count, more: true })
}
