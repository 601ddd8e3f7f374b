//! A TCP proxy that can throttle, hold back replies, and break connections.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Forwards connections to a port of 127.0.0.1.
///
/// ```no_run
/// let server = outbox_testbed::Server::nats();
/// let proxy = outbox_testbed::Proxy::to(server.port());
/// // … a client connects to proxy.port() …
/// proxy.allow_bytes(10_000); // forwards 10,000 more bytes from clients
/// proxy.cut();               // breaks the connections, while the server keeps running
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Number of bytes from clients that may still pass.
    credit: AtomicU64,
    /// Number of bytes from servers that may still pass.
    reply_credit: AtomicU64,
    /// Whether the proxy holds back bytes of a server.
    holding: AtomicBool,
    accepted: AtomicUsize,
    round_trips: AtomicU64,
    stopped: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts a proxy to this port.
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            credit: AtomicU64::new(u64::MAX),
            reply_credit: AtomicU64::new(u64::MAX),
            holding: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            round_trips: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let acceptor = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if acceptor.stopped.load(Ordering::SeqCst) {
                    return;
                }
                acceptor.forward(client, target);
            }
        });
        Self { port, shared }
    }

    /// The port of the proxy.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Number of accepted connections.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How often clients have started to send after a reply: the round trips of request-reply
    /// protocols, regardless of the number of messages in each.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::SeqCst)
    }

    /// Forwards only this many more bytes from clients, then stops reading.
    pub fn allow_bytes(&self, bytes: u64) {
        self.shared.credit.store(bytes, Ordering::SeqCst);
    }

    /// Holds back all replies from servers, while data from clients still passes. Replies that are
    /// held back when the connections are [cut](Proxy::cut) never arrive: the clients do not know
    /// whether their request was executed.
    pub fn mute(&self) {
        self.allow_reply_bytes(0);
    }

    /// Forwards exactly this many more bytes from servers, then holds back the rest, be it in the
    /// middle of a message. `u64::MAX` forwards everything again.
    pub fn allow_reply_bytes(&self, bytes: u64) {
        self.shared.holding.store(false, Ordering::SeqCst);
        self.shared.reply_credit.store(bytes, Ordering::SeqCst);
    }

    /// Whether bytes from a server have arrived that are held back.
    pub fn is_holding_replies(&self) -> bool {
        self.shared.holding.load(Ordering::SeqCst)
    }

    /// Breaks all connections. New connections are forwarded without a limit.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().expect("no panic while the lock is held").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.credit.store(u64::MAX, Ordering::SeqCst);
        self.allow_reply_bytes(u64::MAX);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the accept loop.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn forward(self: &Arc<Self>, client: TcpStream, target: u16) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
        // Without TCP_NODELAY a message in two segments would wait 40 ms for the first
        // acknowledgement, a fault that is not intended here.
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
        }
        let halves = (|| Ok::<_, std::io::Error>((client.try_clone()?, server.try_clone()?)))();
        let Ok((client_reader, server_reader)) = halves else { return };
        let mut open = self.open.lock().expect("no panic while the lock is held");
        open.extend([client.try_clone(), server.try_clone()].into_iter().flatten());
        drop(open);
        let replied = Arc::new(AtomicBool::new(true));
        let (upstream, request_replied) = (Arc::clone(self), Arc::clone(&replied));
        thread::spawn(move || upstream.copy(client, server, true, &request_replied));
        let downstream = Arc::clone(self);
        thread::spawn(move || downstream.copy(server_reader, client_reader, false, &replied));
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, limited: bool, replied: &AtomicBool) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if replied.swap(!limited, Ordering::SeqCst) && limited {
                self.round_trips.fetch_add(1, Ordering::SeqCst);
            }
            if limited && !self.spend(read as u64, &from) {
                break;
            }
            let written =
                if limited { to.write_all(&buffer[..read]) } else { self.reply(&buffer[..read], &mut to) };
            if written.is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// Forwards a reply, as far and as soon as its bytes may pass.
    fn reply(&self, mut bytes: &[u8], to: &mut TcpStream) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let wanted = bytes.len() as u64;
            let credit = self.reply_credit.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |credit| {
                Some(if credit == u64::MAX { credit } else { credit.saturating_sub(wanted) })
            });
            let allowed = credit.unwrap_or_default().min(wanted) as usize;
            to.write_all(&bytes[..allowed])?;
            bytes = &bytes[allowed..];
            if !bytes.is_empty() {
                self.holding.store(true, Ordering::SeqCst);
                // Fails once the connection is cut.
                to.peer_addr()?;
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Waits until this many bytes may pass; `false` if the connection breaks first.
    fn spend(&self, bytes: u64, stream: &TcpStream) -> bool {
        loop {
            let spent = self.credit.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |credit| match credit {
                u64::MAX => Some(credit),
                _ => credit.checked_sub(bytes),
            });
            if spent.is_ok() {
                // `cut` lifts the limit after it has broken the connections that waited for it.
                return stream.peer_addr().is_ok();
            }
            if stream.peer_addr().is_err() {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
