//! Harness for Mosquitto.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox::Publisher;
use outbox_testbed::{Plan, Server};
use outbox_transports::{Guarantees, Mqtt, MqttSettings};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};
use tokio::time::timeout;

use crate::common::{
    Destination, Harness, MAX_STALL, PASSWORD, PublisherOptions, Received, SOURCE, Sharing, USER, Wait,
};

/// A server, with a persistent session that receives all messages.
pub struct MosquittoHarness {
    pub server: Server,
    seen: Mutex<Vec<Received>>,
}

/// Without `set_tcp_nodelay` Mosquitto delays all acknowledgements but the first by 40 ms whenever
/// it is idle.
pub fn plan() -> Plan {
    Plan::mosquitto().user(USER, PASSWORD).config("set_tcp_nodelay true")
}

impl MosquittoHarness {
    /// Opens a harness with another plan.
    pub async fn from_plan(plan: Plan) -> Option<Self> {
        if !plan.is_here() {
            return None;
        }
        let server = tokio::task::block_in_place(|| plan.start());
        let harness = Self { server, seen: Mutex::default() };
        let (client, mut events) = harness.subscriber("subscriber");
        client.subscribe("#", QoS::AtLeastOnce).await.unwrap();
        while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
        Some(harness)
    }

    /// A client whose session persists while it is disconnected.
    pub fn subscriber(&self, id: &str) -> (AsyncClient, EventLoop) {
        let mut options = MqttOptions::new(id, "127.0.0.1", self.server.port());
        options.set_credentials(USER, PASSWORD).set_clean_start(false);
        options.set_connection_timeout(MAX_STALL.as_secs());
        options.set_session_expiry_interval(Some(u32::MAX)).set_max_packet_size(Some(10_000_000));
        AsyncClient::new(options, 10)
    }

    pub fn settings(&self, options: &PublisherOptions) -> MqttSettings {
        let mut settings = MqttSettings::new(&self.server.bare_url(), "orders/{type}".parse().unwrap());
        assert_eq!(options.destination, Destination::Existing);
        settings.user = Some(USER.into());
        settings.password = Some(options.password.into());
        settings.format = options.format;
        settings.source = SOURCE.into();
        settings.connect_timeout = options.timeout;
        settings.ack_timeout = options.timeout;
        settings
    }

    /// Creates a publisher with changed settings.
    pub fn with(&self, change: impl FnOnce(&mut MqttSettings)) -> Mqtt {
        let mut settings = self.settings(&PublisherOptions::default());
        change(&mut settings);
        Mqtt::new("mosquitto", settings).unwrap()
    }
}

#[async_trait]
impl Harness for MosquittoHarness {
    const GUARANTEES: Guarantees = Mqtt::GUARANTEES;
    const CE_PREFIX: &'static str = "";
    /// Mosquitto acknowledges before it writes to disk.
    const SURVIVES_CRASHES: bool = false;

    async fn open(_: Sharing) -> Option<Self> {
        Self::from_plan(plan().config("max_packet_size 500000")).await
    }

    fn publisher(&self, options: &PublisherOptions) -> Arc<dyn Publisher> {
        Arc::new(Mqtt::new("mosquitto", self.settings(options)).unwrap())
    }

    fn debug_output(&self) -> String {
        let settings = self.settings(&PublisherOptions::default());
        format!("{settings:?} {:?}", Mqtt::new("mosquitto", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let (_client, mut events) = self.subscriber("subscriber");
        let mut wait = Wait::until(count);
        loop {
            let timeout_left =
                wait.remaining(self.seen.lock().unwrap().len()).max(Duration::from_millis(200));
            match timeout(timeout_left, events.poll()).await {
                Ok(Ok(Event::Incoming(Packet::Publish(message)))) => {
                    self.seen.lock().unwrap().push(received(&message));
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => panic!("{error}"),
                Err(_) => break,
            }
        }
        self.seen.lock().unwrap().clone()
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server.port())
    }

    fn publisher_at(&self, address: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        let mut settings = self.settings(&PublisherOptions::default());
        settings.url = format!("{}://{address}", if tls { "mqtts" } else { "mqtt" }).as_str().into();
        Some(Arc::new(Mqtt::new("mosquitto", settings).unwrap()))
    }

    fn missing_name(&self) -> Option<String> {
        None
    }

    fn oversized_payload(&self) -> usize {
        500_000
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

fn received(message: &Publish) -> Received {
    let properties = message.properties.clone().unwrap_or_default();
    let headers = properties.user_properties;
    // A user property in every format except the structured one, where it is in the object.
    let id = headers.iter().find(|(name, _)| name == "outbox-id" || name == "id").map(|(_, id)| id.clone());
    let id = id.unwrap_or_else(|| {
        let object: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        object["id"].as_str().unwrap().to_owned()
    });
    Received { id, content_type: properties.content_type, headers, body: message.payload.to_vec() }
}
