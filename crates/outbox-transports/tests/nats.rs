//! NATS JetStream, by a server of its own.
#![cfg(feature = "nats")]

mod conformance;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, Info};
use async_nats::{ConnectOptions, jetstream};
use async_trait::async_trait;
use conformance::{Bed, Destination, PASSWORD, Received, SOURCE, Share, USER, Wish};
use outbox::Publisher;
use outbox_testbed::{Plan, Server};
use outbox_transports::{Nats, NatsSettings, Promises};

struct NatsBed {
    server: Server,
}

impl NatsBed {
    fn settings(&self, wish: &Wish) -> NatsSettings {
        let subject = match wish.destination {
            Destination::Usual => "orders.{type}",
            Destination::Missing => "nowhere.at-all",
        };
        let mut settings = NatsSettings::new(&self.server.bare_url(), subject.parse().unwrap());
        settings.user = Some(USER.into());
        settings.password = Some(wish.password.into());
        settings.format = wish.format;
        settings.source = SOURCE.into();
        settings.connect_timeout = wish.timeout;
        settings.ack_timeout = wish.timeout;
        settings
    }

    async fn jetstream(&self) -> jetstream::Context {
        let options = ConnectOptions::with_user_and_password(USER.to_owned(), PASSWORD.to_owned());
        jetstream::new(options.connect(self.server.bare_url()).await.unwrap())
    }
}

#[async_trait]
impl Bed for NatsBed {
    const PROMISES: Promises = Nats::PROMISES;

    async fn open(_: Share) -> Option<Self> {
        let plan = Plan::nats().user(USER, PASSWORD);
        if !plan.is_here() {
            return None;
        }
        let bed = Self { server: plan.start() };
        let stream = Config { name: "orders".into(), subjects: vec!["orders.>".into()], ..Config::default() };
        bed.jetstream().await.create_stream(stream).await.unwrap();
        Some(bed)
    }

    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher> {
        Arc::new(Nats::new("nats", self.settings(wish)).unwrap())
    }

    fn shown(&self) -> String {
        let mut settings = self.settings(&Wish::default());
        settings.url = self.server.url().as_str().into();
        settings.token = None;
        format!("{settings:?} {:?}", Nats::new("nats", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let stream = self.jetstream().await.get_stream("orders").await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let state = loop {
            let Info { state, .. } = stream.get_info().await.unwrap();
            if state.messages >= count as u64 || Instant::now() > deadline {
                break state;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let mut received = Vec::new();
        if state.messages == 0 {
            return received;
        }
        for sequence in state.first_sequence..=state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let header = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
            let headers = message.headers.iter();
            received.push(Received {
                id: header("Nats-Msg-Id").unwrap(),
                content_type: header("Content-Type"),
                headers: headers
                    .map(|(name, values)| (name.to_string(), values[0].as_str().to_owned()))
                    .collect(),
                body: message.payload.to_vec(),
            });
        }
        received
    }

    fn missing(&self) -> Option<String> {
        Some("nowhere.at-all".to_owned())
    }

    fn too_big(&self) -> usize {
        1_048_576
    }

    fn stop(&mut self) {
        self.server.stop();
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start(&mut self) {
        self.server.start();
    }

    fn freeze(&mut self) -> bool {
        self.server.freeze();
        true
    }

    fn thaw(&mut self) {
        self.server.thaw();
    }
}

conformance::tests!(NatsBed);
