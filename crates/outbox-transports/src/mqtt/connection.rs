//! The connection to an MQTT server: opened, polled, and discarded at the first error.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use outbox::Unavailable;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{ConnAck, Packet};
use rumqttc::v5::{AsyncClient, ConnectionError, Event, EventLoop, MqttOptions};
use rumqttc::{TlsConfiguration, Transport};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::in_flight::{ConnectionLoss, InFlight, PublishOutcome};
use super::message::MqttMessage;
use super::server::Server;
use crate::reconnect::Connect;
use crate::{Tls, TlsFileError};

/// Maximum number of messages in flight. The server may allow fewer.
const MAX_IN_FLIGHT: u16 = 256;

/// Maximum packet size of the protocol: five bytes of header, and the maximum of a four-byte
/// length.
const MAX_PACKET_SIZE: usize = 5 + 268_435_455;

/// Opens [`MqttConnection`]s to one server.
pub(super) struct MqttConnector {
    pub(super) server: Server,
    pub(super) tls: Tls,
    pub(super) client_id: String,
    pub(super) timeout: Duration,
    pub(super) keep_alive: Duration,
    pub(super) retain: bool,
}

#[async_trait]
impl Connect for MqttConnector {
    type Connection = MqttConnection;

    async fn connect(&self) -> Result<MqttConnection, Unavailable> {
        let Server { host, port, .. } = &self.server;
        MqttConnection::open(self).await.map_err(|error| {
            Unavailable::new(format_args!("cannot connect to the MQTT server at {host}:{port}: {error}"))
        })
    }

    fn is_usable(connection: &MqttConnection) -> bool {
        connection.shared.in_flight().loss().is_none()
    }
}

impl MqttConnector {
    fn options(&self) -> Result<MqttOptions, TlsFileError> {
        let mut options = MqttOptions::new(&self.client_id, &self.server.host, self.server.port);
        options.set_keep_alive(self.keep_alive);
        // Nothing of an earlier connection may be sent again: the relay decides about messages
        // without a result.
        options.set_clean_start(true);
        options.set_outgoing_inflight_upper_limit(MAX_IN_FLIGHT);
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

/// Reason why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
enum MqttConnectError {
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error(transparent)]
    Io(std::io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("the server supports only unacknowledged messages (maximum QoS 0)")]
    Unacknowledged,
    #[error("the server does not support retained messages: set `retain = false`")]
    NotRetained,
}

impl From<ConnectionError> for MqttConnectError {
    fn from(error: ConnectionError) -> Self {
        match error {
            // Nothing was sent yet, so no message can be the cause.
            ConnectionError::Io(error) => Self::Io(error),
            error => Self::Refused(ConnectionLoss::from(error).reason().to_owned()),
        }
    }
}

/// An open connection.
pub(super) struct MqttConnection {
    client: AsyncClient,
    shared: Arc<Shared>,
    /// Maximum packet size that the server accepts.
    pub(super) max_packet_size: usize,
    poller: JoinHandle<()>,
}

/// State shared by the poll task and the callers of [`MqttConnection::publish`].
struct Shared {
    /// Permits for messages in flight.
    window: Semaphore,
    in_flight: Mutex<InFlight>,
}

impl Shared {
    fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().expect("no panic while the lock is held")
    }

    fn handle(&self, event: &Event) {
        let freed = self.in_flight().handle(event);
        self.window.add_permits(freed);
    }

    /// Fails all messages in flight.
    fn fail_all(&self, loss: ConnectionLoss) {
        self.in_flight().fail_all(loss);
        self.window.close();
    }
}

impl MqttConnection {
    async fn open(connector: &MqttConnector) -> Result<Self, MqttConnectError> {
        let (client, mut events) = AsyncClient::new(connector.options()?, usize::from(MAX_IN_FLIGHT));
        let connected = timeout(connector.timeout, async {
            loop {
                if let Event::Incoming(Packet::ConnAck(connack)) = events.poll().await? {
                    return Ok::<_, ConnectionError>(connack);
                }
            }
        });
        let connack = connected.await.map_err(|_| MqttConnectError::TimedOut(connector.timeout))??;
        let limits = ServerLimits::of(&connack, connector.retain)?;
        let shared = Arc::new(Shared {
            window: Semaphore::new(usize::from(limits.window)),
            in_flight: Mutex::new(InFlight::default()),
        });
        let poller = tokio::spawn(poll(events, Arc::clone(&shared)));
        Ok(Self { client, shared, max_packet_size: limits.max_packet_size, poller })
    }

    /// Sends a message and waits for the server's acknowledgement.
    pub(super) async fn publish(&self, message: &MqttMessage, retain: bool) -> PublishOutcome {
        // The semaphore is closed only after all messages in flight were failed, so `loss` is set.
        if let Ok(permit) = self.shared.window.acquire().await {
            permit.forget();
        }
        let outcome = {
            // Under one lock: the client assigns packet ids in the order in which it gets the
            // messages.
            let mut in_flight = self.shared.in_flight();
            if let Some(loss) = in_flight.loss() {
                return PublishOutcome::Lost(loss.clone());
            }
            let (reply, outcome) = oneshot::channel();
            let properties = message.properties.clone();
            let sent = self.client.try_publish_with_properties(
                &message.topic,
                QoS::AtLeastOnce,
                retain,
                message.body.clone(),
                properties,
            );
            if sent.is_err() {
                return PublishOutcome::Lost(ConnectionLoss::outage("the connection has ended"));
            }
            in_flight.queue(reply);
            outcome
        };
        outcome
            .await
            .unwrap_or_else(|_| PublishOutcome::Lost(ConnectionLoss::outage("the connection has ended")))
    }

    /// Ends the connection immediately.
    pub(super) fn close(&self, reason: &str) {
        self.poller.abort();
        self.shared.fail_all(ConnectionLoss::outage(reason));
    }
}

impl Drop for MqttConnection {
    fn drop(&mut self) {
        self.poller.abort();
    }
}

/// Drives the connection. Never cancelled except to end the connection: a packet could be lost
/// between two polls.
async fn poll(mut events: EventLoop, shared: Arc<Shared>) {
    let error = loop {
        match events.poll().await {
            Ok(event) => shared.handle(&event),
            Err(error) => break error,
        }
    };
    // Handles the packets that arrived before the error. Another poll would reconnect and resend
    // unacknowledged messages.
    for event in events.state.events.drain(..) {
        shared.handle(&event);
    }
    shared.fail_all(ConnectionLoss::from(error));
}

/// Limits that the server announced.
struct ServerLimits {
    window: u16,
    max_packet_size: usize,
}

impl ServerLimits {
    fn of(connack: &ConnAck, retain: bool) -> Result<Self, MqttConnectError> {
        let Some(limits) = &connack.properties else {
            return Ok(Self { window: MAX_IN_FLIGHT, max_packet_size: MAX_PACKET_SIZE });
        };
        if limits.max_qos == Some(0) {
            return Err(MqttConnectError::Unacknowledged);
        }
        if retain && limits.retain_available == Some(0) {
            return Err(MqttConnectError::NotRetained);
        }
        let max_packet_size = limits.max_packet_size.and_then(|size| usize::try_from(size).ok());
        Ok(Self {
            window: limits.receive_max.unwrap_or(MAX_IN_FLIGHT).clamp(1, MAX_IN_FLIGHT),
            max_packet_size: max_packet_size.unwrap_or(MAX_PACKET_SIZE).min(MAX_PACKET_SIZE),
        })
    }
}
