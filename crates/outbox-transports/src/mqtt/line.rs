//! The connection to an MQTT server: opened, watched, and thrown away at the first error.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{ConnAck, Packet};
use rumqttc::v5::{AsyncClient, ConnectionError, Event, EventLoop, MqttOptions};
use rumqttc::{TlsConfiguration, Transport};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::flights::{Answer, Flights, Loss};
use super::parcel::Parcel;
use super::server::Server;
use crate::Tls;
use crate::link::Dial;

/// How many messages may be on their way at most. The server may allow fewer.
const WINDOW: u16 = 256;

/// The most that a packet can have, by the protocol: five bytes of header, and what four of them can count.
const LARGEST: usize = 5 + 268_435_455;

/// How to get a [`Line`].
pub(super) struct Dialer {
    pub(super) server: Server,
    pub(super) tls: Tls,
    pub(super) client_id: String,
    pub(super) timeout: Duration,
    pub(super) keep_alive: Duration,
    pub(super) retain: bool,
}

#[async_trait]
impl Dial for Dialer {
    type Line = Line;

    async fn dial(&self) -> Result<Line, String> {
        let Server { host, port, .. } = &self.server;
        Line::open(self)
            .await
            .map_err(|reason| format!("cannot connect to the MQTT server at {host}:{port}: {reason}"))
    }

    fn is_up(line: &Line) -> bool {
        line.shared.flights().lost().is_none()
    }
}

impl Dialer {
    fn options(&self) -> Result<MqttOptions, String> {
        let mut options = MqttOptions::new(&self.client_id, &self.server.host, self.server.port);
        options.set_keep_alive(self.keep_alive);
        // Nothing of an earlier connection is to be sent again: what became of it is for the relay to find out.
        options.set_clean_start(true);
        options.set_outgoing_inflight_upper_limit(WINDOW);
        options.set_connection_timeout(self.timeout.as_secs() + 1);
        let mut network = options.network_options();
        network.set_tcp_nodelay(true);
        network.set_connection_timeout(self.timeout.as_secs() + 1);
        options.set_network_options(network);
        if let Some((user, password)) = &self.server.login {
            options.set_credentials(user, password);
        }
        if self.server.encrypted {
            let config = TlsConfiguration::Rustls(Arc::new(self.tls.client_config()?));
            options.set_transport(Transport::tls_with_config(config));
        }
        Ok(options)
    }
}

/// A connection.
pub(super) struct Line {
    client: AsyncClient,
    shared: Arc<Shared>,
    /// How large a packet may be.
    pub(super) largest: usize,
    poller: JoinHandle<()>,
}

/// What the one who polls and those who publish have in common.
struct Shared {
    /// Places for messages on their way.
    window: Semaphore,
    flights: Mutex<Flights>,
}

impl Shared {
    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().expect("nothing panics while it is held")
    }

    fn note(&self, event: &Event) {
        let free = self.flights().note(event);
        self.window.add_permits(free);
    }

    /// Tells all who wait that it is over.
    fn lose(&self, loss: Loss) {
        self.flights().lose(loss);
        self.window.close();
    }
}

impl Line {
    async fn open(dialer: &Dialer) -> Result<Self, String> {
        let (client, mut events) = AsyncClient::new(dialer.options()?, usize::from(WINDOW));
        let connected = timeout(dialer.timeout, async {
            loop {
                if let Event::Incoming(Packet::ConnAck(welcome)) = events.poll().await? {
                    return Ok(welcome);
                }
            }
        });
        let welcome = connected
            .await
            .map_err(|_| format!("no answer within {:?}", dialer.timeout))?
            .map_err(|error: ConnectionError| match error {
                // Before anything was sent no message can be the reason.
                ConnectionError::Io(error) => error.to_string(),
                error => Loss::from(error).reason().to_owned(),
            })?;
        let terms = Terms::of(&welcome, dialer.retain)?;
        let shared = Arc::new(Shared {
            window: Semaphore::new(usize::from(terms.window)),
            flights: Mutex::new(Flights::default()),
        });
        let poller = tokio::spawn(poll(events, Arc::clone(&shared)));
        Ok(Self { client, shared, largest: terms.largest, poller })
    }

    /// Sends a message and waits for the server's answer to it.
    pub(super) async fn publish(&self, parcel: &Parcel, retain: bool) -> Answer {
        // Closed only after all were told why.
        if let Ok(place) = self.shared.window.acquire().await {
            place.forget();
        }
        let answer = {
            // Under one lock: the client numbers messages in the order in which it gets them.
            let mut flights = self.shared.flights();
            if let Some(loss) = flights.lost() {
                return Answer::Lost(loss.clone());
            }
            let (tell, answer) = oneshot::channel();
            let properties = parcel.properties.clone();
            let sent = self.client.try_publish_with_properties(
                &parcel.topic,
                QoS::AtLeastOnce,
                retain,
                parcel.body.clone(),
                properties,
            );
            if sent.is_err() {
                return Answer::Lost(Loss::outage("the connection has ended"));
            }
            flights.queue(tell);
            answer
        };
        answer.await.unwrap_or_else(|_| Answer::Lost(Loss::outage("the connection has ended")))
    }

    /// Ends the connection at once.
    pub(super) fn cut(&self, reason: &str) {
        self.poller.abort();
        self.shared.lose(Loss::outage(reason));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.poller.abort();
    }
}

/// Moves everything on this connection. Never cancelled half way but to end it: a packet could be lost between two polls.
async fn poll(mut events: EventLoop, shared: Arc<Shared>) {
    let error = loop {
        match events.poll().await {
            Ok(event) => shared.note(&event),
            Err(error) => break error,
        }
    };
    // What came in before the error did come in. Polling on would connect again, and send again what has no answer.
    for event in events.state.events.drain(..) {
        shared.note(&event);
    }
    shared.lose(Loss::from(error));
}

/// What the server allows.
struct Terms {
    window: u16,
    largest: usize,
}

impl Terms {
    fn of(welcome: &ConnAck, retain: bool) -> Result<Self, String> {
        let Some(terms) = &welcome.properties else {
            return Ok(Self { window: WINDOW, largest: LARGEST });
        };
        if terms.max_qos == Some(0) {
            return Err("it takes messages without confirmation only (maximum QoS 0)".to_owned());
        }
        if retain && terms.retain_available == Some(0) {
            return Err("it keeps no messages: set `retain = false`".to_owned());
        }
        let largest = terms.max_packet_size.and_then(|size| usize::try_from(size).ok());
        Ok(Self {
            window: terms.receive_max.unwrap_or(WINDOW).clamp(1, WINDOW),
            largest: largest.unwrap_or(LARGEST).min(LARGEST),
        })
    }
}
