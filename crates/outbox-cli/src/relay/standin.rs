//! Stands in for the library's router.

use std::sync::Arc;

use async_trait::async_trait;
use outbox::{Event, Failure, Outgoing, PublishError, Publisher, RelayBuilder, RetryPolicy};

#[derive(Clone)]
pub(crate) struct Destination(Arc<dyn Publisher>);

pub(crate) struct Outage {
    pub(crate) since: chrono::DateTime<chrono::Utc>,
    pub(crate) reason: String,
}

impl Destination {
    pub(crate) fn new(publisher: impl Publisher) -> Self {
        Self(Arc::new(publisher))
    }
    pub(crate) fn retry(self, _: impl RetryPolicy) -> Self {
        self
    }
    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }
    pub(crate) fn outage(&self) -> Option<Outage> {
        None
    }
}

pub(crate) trait Router: Send + Sync + 'static {
    fn route(&self, event: &Event) -> Option<Destination>;
    fn of_type(&self, _: &str) -> Option<Destination> {
        None
    }
}

struct Routed<R>(R);

#[async_trait]
impl<R: Router> Publisher for Routed<R> {
    fn name(&self) -> &str {
        "routed"
    }
    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        match self.0.route(&events[0]) {
            Some(to) => to.0.publish_batch(events).await,
            None => Err(PublishError::after(0, Failure::dead("no route"))),
        }
    }
}

pub(crate) trait ForwardBy: Sized {
    fn forward_by(self, router: impl Router) -> Self;
}

impl<S> ForwardBy for RelayBuilder<S> {
    fn forward_by(self, router: impl Router) -> Self {
        self.forward_any(Routed(router))
    }
}
