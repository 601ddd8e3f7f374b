//! JetStream, as tests read it.

use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use outbox_testbed::Server;

/// How long connecting and an answer may take. A busy machine takes longer than the defaults, 5 s.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn jetstream(nats: &Server) -> Context {
    let connecting = ConnectOptions::new().connection_timeout(PATIENCE).connect(nats.url());
    ContextBuilder::new().timeout(PATIENCE).build(connecting.await.unwrap())
}
