//! HTTP server: accepts connections and serves requests.
//!
//! `axum::serve` waits without limit for the head of a request, and for a client that does not
//! read, and accepts any number of connections, so that one client could use up all of them. Here
//! each of these is bounded, and a new connection is always admitted (see
//! [`connections`](super::connections)).

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::connections::{Activity, Connection, ConnectionSlot, Connections, Limits};

/// Time limit for a TLS handshake, and for the head of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for a write without progress.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum lifetime of a connection, unless it sends a stream of events. After that the current
/// response is finished, and the connection is closed.
const MAX_LIFETIME: Duration = Duration::from_secs(300);

/// Time limit for that last response.
const LAST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(40);

/// Interval for checking whether the stream of events has ended, on a connection over its lifetime.
const STREAM_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Delay after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Error codes for too many open files, in this process or on this machine (EMFILE, ENFILE).
const FILE_LIMIT_ERRORS: [i32; 2] = [24, 23];

/// Number of connections that may wait to be accepted. In a burst the kernel must not drop a
/// connection, which the client would retry after a second at the earliest.
const BACKLOG: u32 = 4_096;

/// Send buffer of a connection in bytes, which the kernel doubles. By default the kernel may buffer
/// 4 MiB per connection, and a write to a client that does not read would stall only when all of
/// that is full.
const SEND_BUFFER: u32 = 64 * 1024;

/// Listens on this address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit the size from the listening socket.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts and serves connections until dropped.
pub(crate) async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, app: Router, limits: Limits) {
    let connections = Connections::new(limits);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                if error.raw_os_error().is_some_and(|code| FILE_LIMIT_ERRORS.contains(&code))
                    && connections.evict_one()
                {
                    // The evicted connection is closed when its task runs.
                    tokio::task::yield_now().await;
                } else {
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
                continue;
            }
        };
        // Responses are small, and messages of a stream should not be delayed.
        let _ = stream.set_nodelay(true);
        let slot = connections.admit(peer.ip());
        tokio::spawn(serve_connection(stream, peer, tls.clone(), app.clone(), slot));
    }
}

/// Serves one connection until it ends or is evicted.
async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    app: Router,
    slot: ConnectionSlot,
) {
    let connection = slot.connection.clone();
    let stream = MonitoredStream::new(stream, connection.clone());
    let responses = async {
        match tls {
            None => serve_requests(stream, peer, app, &connection).await,
            Some(tls) => match tokio::time::timeout(READ_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => serve_requests(stream, peer, app, &connection).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
            },
        }
    };
    tokio::select! {
        () = responses => {}
        () = connection.evicted() => tracing::debug!(%peer, "connection evicted for a new one"),
    }
}

/// Serves the requests of one connection.
async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    app: Router,
    connection: &Arc<Connection>,
) {
    let of_service = connection.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (app, connection) = (app.clone(), of_service.clone());
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            connection.set(Activity::Handling);
            // Yields before each request: pipelined requests must not delay other connections.
            tokio::task::yield_now().await;
            let answer = app.oneshot(request).await;
            let is_stream = answer.as_ref().is_ok_and(|answer| {
                answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream")
            });
            connection.set(if is_stream { Activity::Streaming } else { Activity::Waiting });
            answer
        }
    });
    let responses = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut responses = pin!(responses);
    let ended = tokio::select! {
        ended = responses.as_mut() => ended,
        () = lifetime_over(connection) => {
            responses.as_mut().graceful_shutdown();
            match tokio::time::timeout(LAST_RESPONSE_TIMEOUT, responses).await {
                Ok(ended) => ended,
                Err(_) => return tracing::debug!(%peer, "connection closed: maximum lifetime exceeded"),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended early");
    }
}

/// Waits until the connection has reached its maximum lifetime and sends no stream.
async fn lifetime_over(connection: &Connection) {
    tokio::time::sleep(MAX_LIFETIME).await;
    while connection.is_streaming() {
        tokio::time::sleep(STREAM_CHECK_INTERVAL).await;
    }
}

/// A stream that records progress, and fails if a write makes no progress for too long.
struct MonitoredStream<S> {
    inner: S,
    connection: Arc<Connection>,
    /// Set while a write waits for the client to read.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> MonitoredStream<S> {
    fn new(inner: S, connection: Arc<Connection>) -> Self {
        Self { inner, connection, stalled: None }
    }

    /// Records the result of a write; fails if the write has stalled for too long.
    fn track_write<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            self.connection.progressed();
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_STALL_TIMEOUT)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, into);
        if read.is_ready() {
            self.connection.progressed();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.track_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.track_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    // A socket has nothing to flush, so a flush is not progress.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::Sse;
    use axum::response::sse::Event;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    /// Serves a large response, a small one, and a stream with one event per second.
    fn app() -> Router {
        let live = async || {
            Sse::new(futures_util::stream::unfold((), async |()| {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some((Ok::<_, Infallible>(Event::default().data("tick")), ()))
            }))
        };
        Router::new()
            .route("/large", axum::routing::get(async || "x".repeat(1_000_000)))
            .route("/", axum::routing::get(async || "here"))
            .route("/live", axum::routing::get(live))
    }

    /// A connection over a pipe with a buffer of this size.
    fn connected(holds: usize) -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let (client, server) = duplex(holds);
        let slot = Connections::new(Limits::of(8)).admit([127, 0, 0, 1].into());
        let served = tokio::spawn(async move {
            let stream = MonitoredStream::new(server, slot.connection.clone());
            serve_requests(stream, ([127, 0, 0, 1], 1).into(), app(), &slot.connection).await;
        });
        (client, served)
    }

    async fn send_request(client: &mut DuplexStream, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_request_is_disconnected() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, None, app(), Limits::of(8)));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
        let mut received = Vec::new();
        // The paused clock advances while all tasks wait.
        let ended = tokio::time::timeout(4 * READ_TIMEOUT, slow.read_to_end(&mut received)).await;
        assert!(ended.is_ok(), "the client was not disconnected");
        assert!(!String::from_utf8_lossy(&received).contains("here"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (mut client, served) = connected(1_024);
        let began = Instant::now();
        send_request(&mut client, "/large").await;
        tokio::time::timeout(MAX_LIFETIME / 2, served)
            .await
            .expect("the client was not disconnected")
            .unwrap();
        assert!(began.elapsed() >= WRITE_STALL_TIMEOUT, "the client had enough time");
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert!(received.len() <= 1_024);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_gets_its_response() {
        let (mut client, served) = connected(100_000);
        send_request(&mut client, "/large").await;
        let mut received = 0;
        let mut some = vec![0; 100_000];
        while received < 1_000_000 {
            tokio::time::sleep(WRITE_STALL_TIMEOUT - Duration::from_secs(1)).await;
            received += client.read(&mut some).await.unwrap();
        }
        assert!(!served.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_after_its_maximum_lifetime() {
        let (mut client, served) = connected(1_024);
        let began = Instant::now();
        let mut some = [0; 1_024];
        while !served.is_finished() {
            assert!(began.elapsed() < 2 * MAX_LIFETIME, "the connection is still open");
            let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
            if client.write_all(request).await.is_err() || client.read(&mut some).await.unwrap() == 0 {
                break;
            }
            tokio::time::sleep(READ_TIMEOUT / 2).await;
        }
        assert!(began.elapsed() >= MAX_LIFETIME);
        served.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_byte_by_byte_is_disconnected_after_its_maximum_lifetime() {
        let (mut client, served) = connected(64);
        let began = Instant::now();
        send_request(&mut client, "/large").await;
        while !served.is_finished() {
            assert!(began.elapsed() < 2 * MAX_LIFETIME, "the connection is still open");
            let _ = client.read_u8().await;
            tokio::time::sleep(WRITE_STALL_TIMEOUT / 2).await;
        }
        assert!(began.elapsed() >= MAX_LIFETIME);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_events_outlives_other_connections_while_it_is_read() {
        let (mut client, served) = connected(1_024);
        let began = Instant::now();
        send_request(&mut client, "/live").await;
        let mut some = [0; 1_024];
        while began.elapsed() < 2 * MAX_LIFETIME {
            assert!(client.read(&mut some).await.unwrap() > 0, "it ended after {:?}", began.elapsed());
        }
        // A client that stops reading is disconnected like any other.
        let stopped = Instant::now();
        tokio::time::timeout(MAX_LIFETIME, served).await.expect("the client was not disconnected").unwrap();
        assert!(stopped.elapsed() >= WRITE_STALL_TIMEOUT);
    }

    #[tokio::test]
    async fn a_new_connection_is_served_at_the_limit_of_connections() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, None, app(), Limits { connections: 8, per_address: 8 }));
        let mut held = Vec::new();
        for _ in 0..8 {
            let mut silent = TcpStream::connect(address).await.unwrap();
            silent.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            held.push(silent);
        }
        for _ in 0..20 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut received = String::new();
            let answered = tokio::time::timeout(READ_TIMEOUT / 2, client.read_to_string(&mut received)).await;
            assert!(answered.is_ok() && received.ends_with("here"), "{received}");
        }
    }
}
