//! The connection to RabbitMQ: opened, monitored, and shut down when it hangs.

use std::cell::RefCell;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lapin::options::ConfirmSelectOptions;
use lapin::tcp::{AMQPUriTcpExt as _, RustlsConnector};
use lapin::types::LongString;
use lapin::uri::{AMQPAuthority, AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, ErrorKind, Event};
use outbox::Unavailable;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};

use crate::reconnect::Connect;
use crate::{Tls, TlsFileError};

/// Opens [`AmqpConnection`]s to one broker.
pub(super) struct AmqpConnector {
    pub(super) uri: AMQPUri,
    pub(super) tls: Tls,
    pub(super) timeout: Duration,
    /// Name of the connection in the broker's listings.
    pub(super) name: String,
}

#[async_trait]
impl Connect for AmqpConnector {
    type Connection = AmqpConnection;

    async fn connect(&self) -> Result<AmqpConnection, Unavailable> {
        let AMQPAuthority { host, port, .. } = &self.uri.authority;
        AmqpConnection::open(self).await.map_err(|error| {
            Unavailable::new(format_args!("cannot connect to RabbitMQ at {host}:{port}: {error}"))
        })
    }

    fn is_usable(connection: &AmqpConnection) -> bool {
        // lapin notices a socket that was shut down only later.
        connection.inner.status().connected() && !connection.kill_switch.is_triggered()
    }
}

/// Reason why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
enum AmqpConnectError {
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error("{}", describe(.0))]
    Client(#[from] lapin::Error),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

/// A connection and its idle channels.
pub(super) struct AmqpConnection {
    inner: Connection,
    kill_switch: KillSwitch,
    idle: Mutex<Vec<Channel>>,
    /// Whether exchange and permission are known to exist.
    verified: AtomicBool,
    /// Reason why the broker blocks publishers: a memory or disk alarm.
    pub(super) alarm: watch::Receiver<Option<String>>,
    watcher: JoinHandle<()>,
    timeout: Duration,
}

impl AmqpConnection {
    async fn open(connector: &AmqpConnector) -> Result<Self, AmqpConnectError> {
        let tls = RustlsConnector::from(connector.tls.client_config()?);
        let kill_switch = KillSwitch::default();
        let limit = connector.timeout;
        let switch = kill_switch.clone();
        let properties =
            ConnectionProperties::default().with_connection_name(LongString::from(connector.name.clone()));
        let runtime = lapin::runtime::default_runtime()?;
        let connector = Connection::connector(
            connector.uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                disable_tracing();
                let connected = timeout(limit, async {
                    let plain = AMQPUri { scheme: AMQPScheme::AMQP, ..uri.clone() };
                    let stream = plain.connect_async(&runtime).await?;
                    if let AsyncTcpStream::Plain(stream) = &stream {
                        switch.attach(stream.get_ref())?;
                    }
                    match uri.scheme {
                        AMQPScheme::AMQP => Ok(stream),
                        AMQPScheme::AMQPS => stream.into_rustls(&tls, &uri.authority.host).await,
                    }
                });
                connected
                    .await
                    .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
                    .map_err(lapin::Error::from)
            },
            properties,
        );
        let connection = match timeout(limit, connector).await {
            Ok(connection) => connection?,
            Err(_) => {
                kill_switch.trigger();
                return Err(AmqpConnectError::TimedOut(limit));
            }
        };
        let (blocked, alarm) = watch::channel(None);
        let mut events = Box::pin(connection.events_listener());
        let watcher = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                match event {
                    Event::ConnectionBlocked(reason) => blocked.send_replace(Some(reason)),
                    Event::ConnectionUnblocked => blocked.send_replace(None),
                    _ => continue,
                };
            }
        });
        let (idle, verified) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { inner: connection, kill_switch, idle, verified, alarm, watcher, timeout: limit })
    }

    pub(super) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    /// Records that the exchange accepts messages.
    pub(super) fn mark_verified(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    /// Records that the exchange accepted none: the next health check verifies it.
    pub(super) fn mark_unverified(&self) {
        self.verified.store(false, Ordering::Relaxed);
    }

    /// Reason why the broker blocks publishers at the moment, if it does.
    pub(super) fn blocked(&self) -> Option<String> {
        self.alarm.borrow().clone()
    }

    /// Maximum payload of a frame in bytes.
    pub(super) fn max_frame_payload(&self) -> usize {
        // Eight bytes frame the payload, fourteen are the fixed part of the content header.
        usize::try_from(self.inner.configuration().frame_max()).unwrap_or(usize::MAX).saturating_sub(22)
    }

    /// Returns a channel in confirm mode. [Release](Self::release) the channel after success,
    /// otherwise drop it: a late confirm on it must not be taken for an answer to another message.
    pub(super) async fn channel(&self) -> Result<Channel, lapin::Error> {
        while let Some(channel) = self.idle().pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let opened = timeout(self.timeout, async {
            let channel = self.inner.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        });
        opened.await.unwrap_or_else(|_| {
            self.shut_down();
            Err(lapin::Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut)))
        })
    }

    /// Returns a channel to the idle channels.
    pub(super) fn release(&self, channel: Channel) {
        self.idle().push(channel);
    }

    /// Ends the connection immediately: nothing that is still queued is sent.
    pub(super) fn shut_down(&self) {
        self.kill_switch.trigger();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().expect("no panic while the lock is held")
    }
}

impl Drop for AmqpConnection {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

thread_local! {
    static NO_TRACING: RefCell<Option<DefaultGuard>> = const { RefCell::new(None) };
}

/// Disables tracing on this thread. lapin connects on the thread that then serves the connection,
/// where it would log every returned message with its body. Our errors carry the relevant part.
fn disable_tracing() {
    NO_TRACING.set(Some(set_default(NoSubscriber::default())));
}

/// Shuts down the socket of a connection that does not answer. lapin cannot do this: it would first
/// send its queued frames and wait for the reply to its close frame.
#[derive(Clone, Default)]
struct KillSwitch(Arc<Mutex<Socket>>);

#[derive(Default)]
enum Socket {
    #[default]
    None,
    Attached(TcpStream),
    /// Triggered, possibly before there was a socket.
    ShutDown,
}

impl KillSwitch {
    fn socket(&self) -> MutexGuard<'_, Socket> {
        self.0.lock().expect("no panic while the lock is held")
    }

    fn attach(&self, stream: &tokio::net::TcpStream) -> std::io::Result<()> {
        let mut socket = self.socket();
        if matches!(*socket, Socket::ShutDown) {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        *socket = Socket::Attached(TcpStream::from(stream.as_fd().try_clone_to_owned()?));
        Ok(())
    }

    fn is_triggered(&self) -> bool {
        matches!(*self.socket(), Socket::ShutDown)
    }

    fn trigger(&self) {
        let mut socket = self.socket();
        if let Socket::Attached(stream) = std::mem::replace(&mut *socket, Socket::ShutDown) {
            // Fails only if the connection has already ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The text of an error.
pub(super) fn describe(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[cfg(target_os = "linux")]
    fn threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.starts_with("lapin-io-loop")).count()
    }

    /// The server waits for the client's header and the client for the server's reply: without a
    /// timeout the thread would wait forever.
    #[cfg(target_os = "linux")]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_silent_broker_leaves_no_thread_behind() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connector = AmqpConnector {
            uri: format!("amqp://127.0.0.1:{port}").parse().unwrap(),
            tls: Tls::default(),
            timeout: Duration::from_millis(100),
            name: "test".to_owned(),
        };
        for _ in 0..3 {
            let unavailable = connector.connect().await.err().unwrap();
            assert_eq!(
                unavailable.reason(),
                format!("cannot connect to RabbitMQ at 127.0.0.1:{port}: no answer within 100ms")
            );
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while threads() > 0 {
            assert!(std::time::Instant::now() < deadline, "{} threads stay", threads());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
