//! Something in between that can slow down, and break.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Passes connections on to a port of 127.0.0.1, for as long as it is told to.
///
/// ```no_run
/// let server = outbox_testbed::Server::nats();
/// let proxy = outbox_testbed::Proxy::to(server.port());
/// // … a client connects to proxy.port() …
/// proxy.let_through(10_000); // so many bytes more of what clients send
/// proxy.cut();               // and then the connections break, while the server is well
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// How much of what clients send may still pass.
    credit: AtomicU64,
    /// Whether what servers answer is held back.
    muted: AtomicBool,
    accepted: AtomicUsize,
    round_trips: AtomicU64,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// To this port.
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            credit: AtomicU64::new(u64::MAX),
            muted: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            round_trips: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let passing = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if passing.ended.load(Ordering::SeqCst) {
                    return;
                }
                passing.pass(client, target);
            }
        });
        Self { port, shared }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections there have been.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How often clients have begun to send after they were answered: the round trips of protocols in which one side speaks at a
    /// time, whatever number of messages goes along in each.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::SeqCst)
    }

    /// Only so many bytes more of what clients send get through; then it stops reading.
    pub fn let_through(&self, bytes: u64) {
        self.shared.credit.store(bytes, Ordering::SeqCst);
    }

    /// Holds back everything that servers answer, while what clients send still gets through. What is held back when the
    /// connections are [cut](Proxy::cut) never arrives: the clients do not know whether it was done.
    pub fn mute(&self) {
        self.shared.muted.store(true, Ordering::SeqCst);
    }

    /// Breaks all connections. New ones are passed on again, without a limit.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().expect("nobody panics with it").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.credit.store(u64::MAX, Ordering::SeqCst);
        self.shared.muted.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the one who waits for connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn pass(self: &Arc<Self>, client: TcpStream, target: u16) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
        // A message that comes in two pieces would wait for the receipt of the first one, 40 ms: that is another fault.
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
        }
        let halves = (|| Ok::<_, std::io::Error>((client.try_clone()?, server.try_clone()?)))();
        let Ok((client_too, server_too)) = halves else { return };
        let mut open = self.open.lock().expect("nobody panics with it");
        open.extend([client.try_clone(), server.try_clone()].into_iter().flatten());
        drop(open);
        let answered = Arc::new(AtomicBool::new(true));
        let (there, asked) = (Arc::clone(self), Arc::clone(&answered));
        thread::spawn(move || there.copy(client, server, true, &asked));
        let back = Arc::clone(self);
        thread::spawn(move || back.copy(server_too, client_too, false, &answered));
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, limited: bool, answered: &AtomicBool) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if answered.swap(!limited, Ordering::SeqCst) && limited {
                self.round_trips.fetch_add(1, Ordering::SeqCst);
            }
            if limited && !self.spend(read as u64, &from) {
                break;
            }
            while !limited && self.muted.load(Ordering::SeqCst) && to.peer_addr().is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// Waits until so much may pass; `false` if the connection breaks first.
    fn spend(&self, bytes: u64, stream: &TcpStream) -> bool {
        loop {
            let spent = self.credit.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |credit| match credit {
                u64::MAX => Some(credit),
                _ => credit.checked_sub(bytes),
            });
            if spent.is_ok() {
                // Whoever waited for a limit to be lifted was cut off by what lifted it.
                return stream.peer_addr().is_ok();
            }
            if stream.peer_addr().is_err() {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
