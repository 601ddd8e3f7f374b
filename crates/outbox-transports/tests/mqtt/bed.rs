//! A Mosquitto server, and eyes at its other end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox::Publisher;
use outbox_testbed::{Plan, Server};
use outbox_transports::{Mqtt, MqttSettings, Promises};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};
use tokio::time::timeout;

use crate::conformance::{
    Bed, Destination, LONGEST_STALL, PASSWORD, Received, SOURCE, Share, USER, Wait, Wish,
};

/// A server, with a session that keeps what comes in.
pub struct MosquittoBed {
    pub server: Server,
    seen: Mutex<Vec<Received>>,
}

/// Without that setting Mosquitto holds back all answers but the first for 40 ms, wherever it has nothing else to wait for.
pub fn plan() -> Plan {
    Plan::mosquitto().user(USER, PASSWORD).config("set_tcp_nodelay true")
}

impl MosquittoBed {
    /// By another plan than usual.
    pub async fn by(plan: Plan) -> Option<Self> {
        if !plan.is_here() {
            return None;
        }
        let server = tokio::task::block_in_place(|| plan.start());
        let bed = Self { server, seen: Mutex::default() };
        let (client, mut events) = bed.eyes("eyes");
        client.subscribe("#", QoS::AtLeastOnce).await.unwrap();
        while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
        Some(bed)
    }

    /// A client whose session stays while it is not there.
    pub fn eyes(&self, id: &str) -> (AsyncClient, EventLoop) {
        let mut options = MqttOptions::new(id, "127.0.0.1", self.server.port());
        options.set_credentials(USER, PASSWORD).set_clean_start(false);
        options.set_connection_timeout(LONGEST_STALL.as_secs());
        options.set_session_expiry_interval(Some(u32::MAX)).set_max_packet_size(Some(10_000_000));
        AsyncClient::new(options, 10)
    }

    pub fn settings(&self, wish: &Wish) -> MqttSettings {
        let mut settings = MqttSettings::new(&self.server.bare_url(), "orders/{type}".parse().unwrap());
        assert_eq!(wish.destination, Destination::Usual);
        settings.user = Some(USER.into());
        settings.password = Some(wish.password.into());
        settings.format = wish.format;
        settings.source = SOURCE.into();
        settings.connect_timeout = wish.timeout;
        settings.ack_timeout = wish.timeout;
        settings
    }

    /// With other settings than usual.
    pub fn with(&self, change: impl FnOnce(&mut MqttSettings)) -> Mqtt {
        let mut settings = self.settings(&Wish::default());
        change(&mut settings);
        Mqtt::new("mosquitto", settings).unwrap()
    }
}

#[async_trait]
impl Bed for MosquittoBed {
    const PROMISES: Promises = Mqtt::PROMISES;
    const CE_PREFIX: &'static str = "";
    /// Mosquitto confirms before it writes.
    const SURVIVES_CRASHES: bool = false;

    async fn open(_: Share) -> Option<Self> {
        Self::by(plan().config("max_packet_size 500000")).await
    }

    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher> {
        Arc::new(Mqtt::new("mosquitto", self.settings(wish)).unwrap())
    }

    fn shown(&self) -> String {
        let settings = self.settings(&Wish::default());
        format!("{settings:?} {:?}", Mqtt::new("mosquitto", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let (_client, mut events) = self.eyes("eyes");
        let mut wait = Wait::until(count);
        loop {
            let moment = wait.left(self.seen.lock().unwrap().len()).max(Duration::from_millis(200));
            match timeout(moment, events.poll()).await {
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

    fn place(&self) -> String {
        format!("127.0.0.1:{}", self.server.port())
    }

    fn publisher_at(&self, place: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        let mut settings = self.settings(&Wish::default());
        settings.url = format!("{}://{place}", if tls { "mqtts" } else { "mqtt" }).as_str().into();
        Some(Arc::new(Mqtt::new("mosquitto", settings).unwrap()))
    }

    fn missing(&self) -> Option<String> {
        None
    }

    fn too_big(&self) -> usize {
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
    // In every format but the structured one it is a user property; there it is in the object.
    let id = headers.iter().find(|(name, _)| name == "outbox-id" || name == "id").map(|(_, id)| id.clone());
    let id = id.unwrap_or_else(|| {
        let object: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        object["id"].as_str().unwrap().to_owned()
    });
    Received { id, content_type: properties.content_type, headers, body: message.payload.to_vec() }
}
