//! The connection to RabbitMQ: opened, watched, and cut off when it hangs.

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
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, ErrorKind, Event};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};

use crate::Tls;
use crate::link::Dial;

/// How to get a [`Line`].
pub(super) struct Dialer {
    pub(super) uri: AMQPUri,
    pub(super) tls: Tls,
    pub(super) timeout: Duration,
    /// What the broker lists the connection as.
    pub(super) name: String,
}

#[async_trait]
impl Dial for Dialer {
    type Line = Line;

    async fn dial(&self) -> Result<Line, String> {
        let place = format!("{}:{}", self.uri.authority.host, self.uri.authority.port);
        Line::open(self).await.map_err(|reason| format!("cannot connect to RabbitMQ at {place}: {reason}"))
    }

    fn is_up(line: &Line) -> bool {
        // A plug that was pulled is noticed only later.
        line.connection.status().connected() && !line.plug.is_pulled()
    }
}

/// A connection, and channels that nobody uses at the moment.
pub(super) struct Line {
    connection: Connection,
    plug: Plug,
    idle: Mutex<Vec<Channel>>,
    /// Whether exchange and permission are known to be there.
    verified: AtomicBool,
    /// Why the broker takes no messages at the moment: it is low on memory, or on disk.
    pub(super) alarm: watch::Receiver<Option<String>>,
    watcher: JoinHandle<()>,
    timeout: Duration,
}

impl Line {
    async fn open(dialer: &Dialer) -> Result<Self, String> {
        let tls = RustlsConnector::from(dialer.tls.client_config()?);
        let plug = Plug::default();
        let limit = dialer.timeout;
        let held = plug.clone();
        let properties =
            ConnectionProperties::default().with_connection_name(LongString::from(dialer.name.clone()));
        let runtime = lapin::runtime::default_runtime().map_err(|error| said(&error))?;
        let connector = Connection::connector(
            dialer.uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                silence();
                let dialled = timeout(limit, async {
                    let plain = AMQPUri { scheme: AMQPScheme::AMQP, ..uri.clone() };
                    let stream = plain.connect_async(&runtime).await?;
                    if let AsyncTcpStream::Plain(stream) = &stream {
                        held.hold(stream.get_ref())?;
                    }
                    match uri.scheme {
                        AMQPScheme::AMQP => Ok(stream),
                        AMQPScheme::AMQPS => stream.into_rustls(&tls, &uri.authority.host).await,
                    }
                });
                dialled
                    .await
                    .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
                    .map_err(lapin::Error::from)
            },
            properties,
        );
        let connection = match timeout(limit, connector).await {
            Ok(connection) => connection.map_err(|error| said(&error))?,
            Err(_) => {
                plug.pull();
                return Err(format!("no answer within {limit:?}"));
            }
        };
        let (told, alarm) = watch::channel(None);
        let mut events = Box::pin(connection.events_listener());
        let watcher = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                match event {
                    Event::ConnectionBlocked(reason) => told.send_replace(Some(reason)),
                    Event::ConnectionUnblocked => told.send_replace(None),
                    _ => continue,
                };
            }
        });
        let (idle, verified) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { connection, plug, idle, verified, alarm, watcher, timeout: limit })
    }

    pub(super) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    /// The exchange takes messages.
    pub(super) fn is_well(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    /// The exchange took none: the next look at its health asks for it.
    pub(super) fn doubt(&self) {
        self.verified.store(false, Ordering::Relaxed);
    }

    /// Why the broker takes no messages at the moment, if it does not.
    pub(super) fn blocked(&self) -> Option<String> {
        self.alarm.borrow().clone()
    }

    /// How large a frame may be.
    pub(super) fn frame(&self) -> usize {
        // Eight bytes frame it, fourteen are the content header's own.
        usize::try_from(self.connection.configuration().frame_max()).unwrap_or(usize::MAX).saturating_sub(22)
    }

    /// A channel with confirms. To be [kept](Self::keep) if all went well, and else to be dropped: what is still to come on it
    /// must not be taken for an answer to something else.
    pub(super) async fn channel(&self) -> Result<Channel, lapin::Error> {
        while let Some(channel) = self.idle().pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let opened = timeout(self.timeout, async {
            let channel = self.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        });
        opened.await.unwrap_or_else(|_| {
            self.cut();
            Err(lapin::Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut)))
        })
    }

    /// Keeps a channel for the next one who needs one.
    pub(super) fn keep(&self, channel: Channel) {
        self.idle().push(channel);
    }

    /// Ends the connection at once: nothing of what waits to be sent is sent.
    pub(super) fn cut(&self) {
        self.plug.pull();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().expect("nothing panics while it is held")
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

thread_local! {
    static SILENCE: RefCell<Option<DefaultGuard>> = const { RefCell::new(None) };
}

/// Whatever is logged on this thread from now on is not. lapin dials on the thread that then serves the connection, where it would
/// log every message that comes back, with its body; what matters of it is in our errors.
fn silence() {
    SILENCE.set(Some(set_default(NoSubscriber::default())));
}

/// Ends a connection that does not answer. lapin has no means of its own: it would wait for an answer to its goodbye, and send
/// what it still has before that.
#[derive(Clone, Default)]
struct Plug(Arc<Mutex<Socket>>);

#[derive(Default)]
enum Socket {
    #[default]
    None,
    Held(TcpStream),
    /// Also before there was one.
    Pulled,
}

impl Plug {
    fn socket(&self) -> MutexGuard<'_, Socket> {
        self.0.lock().expect("nothing panics while it is held")
    }

    fn hold(&self, stream: &tokio::net::TcpStream) -> std::io::Result<()> {
        let mut socket = self.socket();
        if matches!(*socket, Socket::Pulled) {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        *socket = Socket::Held(TcpStream::from(stream.as_fd().try_clone_to_owned()?));
        Ok(())
    }

    fn is_pulled(&self) -> bool {
        matches!(*self.socket(), Socket::Pulled)
    }

    fn pull(&self) {
        let mut socket = self.socket();
        if let Socket::Held(stream) = std::mem::replace(&mut *socket, Socket::Pulled) {
            // It fails only if the connection has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What an error says, for people.
pub(super) fn said(error: &lapin::Error) -> String {
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

    /// Nobody speaks first, so whoever waits for an answer would wait for ever.
    #[cfg(target_os = "linux")]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_broker_that_says_nothing_leaves_no_thread_behind() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let dialer = Dialer {
            uri: format!("amqp://127.0.0.1:{port}").parse().unwrap(),
            tls: Tls::default(),
            timeout: Duration::from_millis(100),
            name: "test".to_owned(),
        };
        for _ in 0..3 {
            let said = dialer.dial().await.err().unwrap();
            assert_eq!(
                said,
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
