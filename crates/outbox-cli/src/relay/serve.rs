//! Accepts connections and answers on them.
//!
//! `axum::serve` waits for the head of a request for ever, and takes any number of connections: whoever opens many and says nothing
//! could take them all. Here both are bounded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// How many connections there are at most.
const CONNECTIONS: usize = 1_024;

/// How long a TLS handshake may take, and the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait after a connection could not be accepted: too many files may be open.
const AGAIN: Duration = Duration::from_millis(200);

/// Answers until it is dropped.
pub(crate) async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, app: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(place) = places.clone().acquire_owned().await {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        // Answers are small, and a stream's messages should not wait for each other.
        let _ = stream.set_nodelay(true);
        let (tls, app) = (tls.clone(), app.clone());
        tokio::spawn(async move {
            match tls {
                None => answer(stream, peer, app).await,
                Some(tls) => match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => answer(stream, peer, app).await,
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS connection came about"),
                    Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
                },
            }
            drop(place);
        });
    }
}

/// Answers on one connection.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: SocketAddr, app: Router) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        app.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_says_nothing_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", axum::routing::get(async || "here"));
        tokio::spawn(serve(listener, None, app));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
        let mut said = Vec::new();
        // The clock moves by itself while everybody waits.
        let ended = tokio::time::timeout(4 * PATIENCE, slow.read_to_end(&mut said)).await;
        assert!(ended.is_ok(), "it was not let go");
        assert!(!String::from_utf8_lossy(&said).contains("here"));
    }
}
