//! A publisher of the log that records the positions it receives.

use std::sync::Arc;

use async_trait::async_trait;
use outbox::{Outgoing, PublishError, Publisher};

use crate::history::{Op, Writer};

pub(super) struct RecordingPublisher {
    pub(super) name: &'static str,
    pub(super) history: Arc<Writer>,
}

#[async_trait]
impl Publisher for RecordingPublisher {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let positions = events.iter().filter_map(|event| Some(event.position()?.get())).collect();
        let epoch = events.first().and_then(Outgoing::epoch);
        self.history.record(Op::Published { publisher: self.name.to_owned(), epoch, positions });
        Ok(())
    }
}
