//! Accepts connections and answers on them.
//!
//! `axum::serve` waits for the head of a request for ever, writes for ever to a client that does not read, and takes any number of
//! connections: a client that opens many could take them all. Here each of these is bounded, and a new connection is always let in
//! (see [`places`](super::places)).

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

use super::places::{Connection, Doing, Limits, Place, Places};

/// How long a TLS handshake may take, and the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a write may make no progress.
const STALLED: Duration = Duration::from_secs(10);

/// How long a connection lasts, unless it sends a stream of events. Then it ends with the answer that it is at.
const LIFE: Duration = Duration::from_secs(300);

/// How long that answer may take.
const LAST_ANSWER: Duration = Duration::from_secs(40);

/// How often to look whether a stream of events has ended on a connection whose time is over.
const LOOK: Duration = Duration::from_secs(1);

/// How long to wait after a connection could not be accepted.
const AGAIN: Duration = Duration::from_millis(200);

/// Too many files are open, in this process or on this machine (EMFILE, ENFILE).
const NO_FILE_LEFT: [i32; 2] = [24, 23];

/// How many connections may wait to be accepted: a burst of them must not have the kernel drop the next one, which comes again after
/// a second at the earliest.
const BACKLOG: u32 = 4_096;

/// How many bytes of answers the kernel keeps for a client that has not read them; it doubles the number. Left alone it may keep
/// 4 MiB for each, and an answer is written to those who do not read until all of that is full.
const SEND_BUFFER: u32 = 64 * 1024;

/// Listens on this address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Connections have it from the socket that they were accepted on.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers until it is dropped.
pub(crate) async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, app: Router, limits: Limits) {
    let places = Places::new(limits);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                if error.raw_os_error().is_some_and(|code| NO_FILE_LEFT.contains(&code)) && places.make_room()
                {
                    // The connection that was closed for this one ends when its task runs.
                    tokio::task::yield_now().await;
                } else {
                    tokio::time::sleep(AGAIN).await;
                }
                continue;
            }
        };
        // Answers are small, and a stream's messages should not wait for each other.
        let _ = stream.set_nodelay(true);
        let place = places.take(peer.ip());
        tokio::spawn(converse(stream, peer, tls.clone(), app.clone(), place));
    }
}

/// Answers on one connection until it ends, or has to give way.
async fn converse(stream: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>, app: Router, place: Place) {
    let connection = place.connection.clone();
    let stream = Watched::new(stream, connection.clone());
    let answers = async {
        match tls {
            None => answer(stream, peer, app, &connection).await,
            Some(tls) => match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
                Ok(Ok(stream)) => answer(stream, peer, app, &connection).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
            },
        }
    };
    tokio::select! {
        () = answers => {}
        () = connection.evicted() => tracing::debug!(%peer, "connection closed: its place was needed"),
    }
}

/// Answers on one connection.
async fn answer(
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
            connection.set(Doing::Handling);
            // Each in turn: requests that were sent together must not hold up other connections.
            tokio::task::yield_now().await;
            let answer = app.oneshot(request).await;
            let is_stream = answer.as_ref().is_ok_and(|answer| {
                answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream")
            });
            connection.set(if is_stream { Doing::Streaming } else { Doing::Waiting });
            answer
        }
    });
    let answers = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    let mut answers = pin!(answers);
    let ended = tokio::select! {
        ended = answers.as_mut() => ended,
        () = lived(connection) => {
            answers.as_mut().graceful_shutdown();
            match tokio::time::timeout(LAST_ANSWER, answers).await {
                Ok(ended) => ended,
                Err(_) => return tracing::debug!(%peer, "connection closed: its time is over"),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended early");
    }
}

/// Returns when the time of a connection is over, and it sends no stream.
async fn lived(connection: &Connection) {
    tokio::time::sleep(LIFE).await;
    while connection.is_streaming() {
        tokio::time::sleep(LOOK).await;
    }
}

/// A stream that tells of progress, and fails when a write makes none for too long.
struct Watched<S> {
    inner: S,
    connection: Arc<Connection>,
    /// Set while a write waits for the client to read.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    fn new(inner: S, connection: Arc<Connection>) -> Self {
        Self { inner, connection, stalled: None }
    }

    /// What came of a write.
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            self.connection.progressed();
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALLED)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    // A socket has nothing to flush: that says nothing of progress.
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

    /// A large answer, a small one, one a second, and what is told when it is asked for.
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

    /// A connection over a pipe that holds so many bytes.
    fn connected(holds: usize) -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let (client, server) = duplex(holds);
        let place = Places::new(Limits::of(8)).take([127, 0, 0, 1].into());
        let served = tokio::spawn(async move {
            let stream = Watched::new(server, place.connection.clone());
            answer(stream, ([127, 0, 0, 1], 1).into(), app(), &place.connection).await;
        });
        (client, served)
    }

    async fn ask(client: &mut DuplexStream, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_let_go() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, None, app(), Limits::of(8)));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
        let mut said = Vec::new();
        // The clock moves by itself while all tasks wait.
        let ended = tokio::time::timeout(4 * PATIENCE, slow.read_to_end(&mut said)).await;
        assert!(ended.is_ok(), "it was not let go");
        assert!(!String::from_utf8_lossy(&said).contains("here"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_cut_off() {
        let (mut client, served) = connected(1_024);
        let began = Instant::now();
        ask(&mut client, "/large").await;
        tokio::time::timeout(LIFE / 2, served).await.expect("it was not cut off").unwrap();
        assert!(began.elapsed() >= STALLED, "it had its time");
        let mut said = Vec::new();
        client.read_to_end(&mut said).await.unwrap();
        assert!(said.len() <= 1_024);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_gets_its_answer() {
        let (mut client, served) = connected(100_000);
        ask(&mut client, "/large").await;
        let mut said = 0;
        let mut some = vec![0; 100_000];
        while said < 1_000_000 {
            tokio::time::sleep(STALLED - Duration::from_secs(1)).await;
            said += client.read(&mut some).await.unwrap();
        }
        assert!(!served.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_its_time_is_over() {
        let (mut client, served) = connected(1_024);
        let began = Instant::now();
        let mut some = [0; 1_024];
        while !served.is_finished() {
            assert!(began.elapsed() < 2 * LIFE, "it goes on");
            let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
            if client.write_all(request).await.is_err() || client.read(&mut some).await.unwrap() == 0 {
                break;
            }
            tokio::time::sleep(PATIENCE / 2).await;
        }
        assert!(began.elapsed() >= LIFE);
        served.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_drips_an_answer_is_cut_off_when_its_time_is_over() {
        let (mut client, served) = connected(64);
        let began = Instant::now();
        ask(&mut client, "/large").await;
        while !served.is_finished() {
            assert!(began.elapsed() < 2 * LIFE, "it goes on");
            let _ = client.read_u8().await;
            tokio::time::sleep(STALLED / 2).await;
        }
        assert!(began.elapsed() >= LIFE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_events_outlives_other_connections_while_it_is_read() {
        let (mut client, served) = connected(1_024);
        let began = Instant::now();
        ask(&mut client, "/live").await;
        let mut some = [0; 1_024];
        while began.elapsed() < 2 * LIFE {
            assert!(client.read(&mut some).await.unwrap() > 0, "it ended after {:?}", began.elapsed());
        }
        // Who does not read it any more is cut off like all others.
        let stopped = Instant::now();
        tokio::time::timeout(LIFE, served).await.expect("it was not cut off").unwrap();
        assert!(stopped.elapsed() >= STALLED);
    }

    #[tokio::test]
    async fn a_new_connection_is_answered_while_all_places_are_taken() {
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
            let mut said = String::new();
            let answered = tokio::time::timeout(PATIENCE / 2, client.read_to_string(&mut said)).await;
            assert!(answered.is_ok() && said.ends_with("here"), "{said}");
        }
    }
}
