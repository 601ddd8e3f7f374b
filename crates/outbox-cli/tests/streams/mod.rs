//! JetStream client for tests.

use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use outbox_testbed::Server;

/// Time limit for connecting and for responses. On a busy machine the default of 5 s is too short.
const TIMEOUT: Duration = Duration::from_secs(60);

pub async fn jetstream(nats: &Server) -> Context {
    let connecting = ConnectOptions::new().connection_timeout(TIMEOUT).connect(nats.url());
    ContextBuilder::new().timeout(TIMEOUT).build(connecting.await.unwrap())
}
