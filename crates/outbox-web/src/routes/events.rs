//! List of events.

use axum::Json;
use axum::extract::State;
use outbox::store::{Filter, PageRequest, StatusGroup};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::age::Age;
use crate::cursor::PageCursor;
use crate::extract::{Params, find_database, page_size};
use crate::problem::ApiResult;
use crate::state::Shared;
use crate::text;
use crate::views::EventView;

/// Maximum number of rows scanned for one page.
const SCAN_LIMIT: usize = 5_000;

/// Query of the list of events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// The name of the database, if there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// The status; `pending` by default.
    #[param(inline)]
    status: Option<StatusFilter>,
    /// `oldest` or `newest` first; `oldest` by default.
    #[param(inline)]
    order: Option<Order>,
    /// Only this event type.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    event_type: Option<String>,
    /// Only this aggregate type.
    #[param(min_length = 1, max_length = 64, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    aggregate_type: Option<String>,
    /// Only this aggregate id.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    aggregate_id: Option<String>,
    /// Only this tenant.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    tenant_id: Option<String>,
    /// Only this ordering key.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    ordering_key: Option<String>,
    /// Only this correlation id.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    correlation_id: Option<String>,
    /// Only events stored more recently than this, such as 2h; of done and dead events, those
    /// settled more recently.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,6}(ms|s|m|h|d)$")]
    within: Option<Age>,
    /// Only events stored longer ago than this; of done and dead events, those settled longer ago.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,6}(ms|s|m|h|d)$")]
    before: Option<Age>,
    /// The cursor: `next` of the previous page.
    #[param(min_length = 1, max_length = 100)]
    cursor: Option<String>,
    /// Number of events per page; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Status of events.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StatusFilter {
    /// Not settled yet: `new` or `retry`.
    #[default]
    Pending,
    /// Not attempted yet.
    New,
    /// Failed, and to be retried.
    Retry,
    /// Delivered.
    Done,
    /// Dead-lettered.
    Dead,
}

/// Order of the list.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// Oldest first.
    #[default]
    Oldest,
    /// Newest first.
    Newest,
}

/// A page of events.
#[derive(Serialize, ToSchema)]
pub(crate) struct Events {
    /// The matching events. If few events match, a page may be short or empty although there is a
    /// next page.
    events: Vec<EventView>,
    /// The value of `cursor` for the next page; null on the last page.
    next: Option<String>,
}

/// List events
///
/// Paginated in index order, without payloads. Nothing is counted or sorted, so the time of a
/// request does not depend on the number of events.
#[utoipa::path(get, path = "/outbox/events", tag = "events", params(EventQuery),
    responses((status = 200, description = "A page of events", body = Events),
              (status = 422, description = "The cursor belongs to another list")))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(query): Params<EventQuery>,
) -> ApiResult<Json<Events>> {
    let database = find_database(&web, query.database.as_deref())?;
    let wanted = query.status.unwrap_or_default();
    let newest_first = query.order.unwrap_or_default() == Order::Newest;
    let status_group = match wanted {
        StatusFilter::Pending | StatusFilter::New | StatusFilter::Retry => StatusGroup::Pending,
        StatusFilter::Done => StatusGroup::Done,
        StatusFilter::Dead => StatusGroup::Dead,
    };
    let after = match &query.cursor {
        Some(cursor) => Some(PageCursor::decode(cursor, status_group, newest_first)?),
        None => None,
    };
    let limit = page_size(query.limit)?;
    let filter = query.filter(status_group)?;
    let request =
        PageRequest { status_group, filter, newest_first, after, limit, scan_limit: SCAN_LIMIT.max(limit) };
    let page = database.store.page(&request).await?;
    let is_wanted = |event: &EventView| match wanted {
        StatusFilter::New => event.status == "NEW",
        StatusFilter::Retry => event.status == "RETRY",
        _ => true,
    };
    let events = page.rows.into_iter().map(EventView::from).filter(is_wanted).collect();
    let next = page.next.map(|at| PageCursor { status_group, newest_first, at }.encode());
    Ok(Json(Events { events, next }))
}

impl EventQuery {
    fn filter(&self, status_group: StatusGroup) -> ApiResult<Filter> {
        let checked = |name: &str, text: &Option<String>, longest: usize| match text {
            Some(text) => text::check(name, text, longest).map(|()| Some(text.clone())),
            None => Ok(None),
        };
        let (within, before) = (self.within.map(|age| age.0), self.before.map(|age| age.0));
        let settled = status_group != StatusGroup::Pending;
        Ok(Filter {
            event_type: checked("event_type", &self.event_type, 255)?,
            aggregate_type: checked("aggregate_type", &self.aggregate_type, 64)?,
            aggregate_id: checked("aggregate_id", &self.aggregate_id, 255)?,
            tenant_id: checked("tenant_id", &self.tenant_id, 255)?,
            ordering_key: checked("ordering_key", &self.ordering_key, 255)?,
            correlation_id: checked("correlation_id", &self.correlation_id, 255)?,
            newer_than: within.filter(|_| !settled),
            older_than: before.filter(|_| !settled),
            settled_within: within.filter(|_| settled),
            settled_before: before.filter(|_| settled),
            ..Filter::default()
        })
    }
}
