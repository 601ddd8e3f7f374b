//! Connections of a listener, and the choice of the connection that is evicted for a new one.
//!
//! A new connection is always admitted, because probes must be answered while other clients keep
//! their connections open. At the limit of all connections, or of one address, the connection that
//! has made no progress for longest is closed.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In total.
    pub(crate) connections: usize,
    /// From one address; with IPv6, from one /64 network.
    pub(crate) per_address: usize,
}

impl Limits {
    /// Allows one address a quarter of all connections.
    pub(crate) fn of(connections: usize) -> Self {
        Self { connections, per_address: (connections / 4).max(1) }
    }
}

/// Activity of a connection, in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Activity {
    /// Waits for a request, or for the client to read a response.
    Waiting,
    /// Sends a stream of events.
    Streaming,
    /// Handles a request.
    Handling,
}

/// State of one connection.
pub(crate) struct Connection {
    address: IpAddr,
    began: Instant,
    /// Time of the last read or written bytes, in milliseconds since the connection began.
    progress: AtomicU64,
    activity: AtomicU8,
    /// Cancelled when the connection is evicted.
    evicted: CancellationToken,
}

impl Connection {
    fn new(address: IpAddr) -> Self {
        let (progress, activity) = (AtomicU64::new(0), AtomicU8::new(Activity::Waiting as u8));
        Self { address, began: Instant::now(), progress, activity, evicted: CancellationToken::new() }
    }

    /// Records that bytes were read or written.
    pub(crate) fn progressed(&self) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.store(millis, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::Relaxed);
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.activity.load(Ordering::Relaxed) == Activity::Streaming as u8
    }

    /// Waits until the connection is evicted.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    fn snapshot(&self) -> Snapshot {
        let progress = std::time::Duration::from_millis(self.progress.load(Ordering::Relaxed));
        Snapshot {
            address: self.address,
            // A connection that handles a request is evicted last: a query may take long without
            // any byte on the connection.
            activity: self.activity.load(Ordering::Relaxed),
            progress: self.began + progress,
        }
    }
}

/// Values of a connection that the choice depends on.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    address: IpAddr,
    activity: u8,
    progress: Instant,
}

/// All connections of a listener.
pub(crate) struct Connections {
    limits: Limits,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
}

/// Registration of one connection, removed on drop.
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    pub(crate) connection: Arc<Connection>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.lock().connections.remove(&self.number);
    }
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OpenConnections> {
        self.open.lock().expect("no code panics while holding the connections")
    }

    /// Registers a new connection. Evicts another one if a limit is reached.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> ConnectionSlot {
        let address = client_network(address);
        let mut open = self.lock();
        let snapshots: Vec<(u64, Snapshot)> =
            open.connections.iter().map(|(n, c)| (*n, c.snapshot())).collect();
        if let Some(victim) = connection_to_evict(self.limits, &snapshots, address) {
            open.evict(victim);
        }
        let number = open.next;
        open.next += 1;
        let connection = Arc::new(Connection::new(address));
        open.connections.insert(number, connection.clone());
        ConnectionSlot { connections: self.clone(), number, connection }
    }

    /// Evicts one connection, if the process has reached its limit of open files. Returns whether
    /// there was one.
    pub(crate) fn evict_one(&self) -> bool {
        let mut open = self.lock();
        let snapshots: Vec<(u64, Snapshot)> =
            open.connections.iter().map(|(n, c)| (*n, c.snapshot())).collect();
        let victim = idlest_of_busiest_address(&snapshots);
        victim.is_some_and(|victim| open.evict(victim))
    }
}

impl OpenConnections {
    /// Removes the connection at once; it is closed as soon as its task runs.
    fn evict(&mut self, number: u64) -> bool {
        let evicted = self.connections.remove(&number);
        evicted.inspect(|connection| connection.evicted.cancel()).is_some()
    }
}

/// Chooses the connection to evict for a new one from this address, if a limit is reached.
fn connection_to_evict(limits: Limits, snapshots: &[(u64, Snapshot)], from: IpAddr) -> Option<u64> {
    let same = || snapshots.iter().filter(|(_, snapshot)| snapshot.address == from);
    if same().count() >= limits.per_address {
        return idlest(same());
    }
    if snapshots.len() >= limits.connections {
        return idlest_of_busiest_address(snapshots);
    }
    None
}

/// Chooses the idlest connection of the address with the most connections: an address with few
/// keeps them.
fn idlest_of_busiest_address(snapshots: &[(u64, Snapshot)]) -> Option<u64> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for (_, snapshot) in snapshots {
        *counts.entry(snapshot.address).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    idlest(snapshots.iter().filter(|(_, snapshot)| counts[&snapshot.address] == most))
}

fn idlest<'a>(snapshots: impl Iterator<Item = &'a (u64, Snapshot)>) -> Option<u64> {
    snapshots
        .min_by_key(|(number, snapshot)| (snapshot.activity, snapshot.progress, *number))
        .map(|(number, _)| *number)
}

/// Reduces an IPv6 address to its /64 network, which is what one host is usually assigned.
fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits { connections: 4, per_address: 3 };

    fn snapshot(address: u8, activity: Activity, idle: u64) -> Snapshot {
        let now = Instant::now() + Duration::from_secs(1_000);
        let progress = now - Duration::from_secs(idle);
        Snapshot { address: [10, 0, 0, address].into(), activity: activity as u8, progress }
    }

    fn decide(connections: &[(u8, Activity, u64)], from: u8) -> Option<u64> {
        let all = connections.iter().map(|(address, activity, idle)| snapshot(*address, *activity, *idle));
        let all: Vec<(u64, Snapshot)> = (0..).zip(all).collect();
        connection_to_evict(LIMITS, &all, [10, 0, 0, from].into())
    }

    #[test]
    fn nothing_is_evicted_below_the_limits() {
        use Activity::*;
        assert_eq!(decide(&[], 1), None);
        assert_eq!(decide(&[(1, Waiting, 9), (1, Waiting, 9), (2, Waiting, 9)], 1), None);
    }

    #[test]
    fn an_address_at_its_limit_loses_its_own_idlest_connection() {
        use Activity::*;
        let three = [(2, Waiting, 99), (1, Waiting, 1), (1, Waiting, 7), (1, Waiting, 3)];
        assert_eq!(decide(&three, 1), Some(2));
    }

    #[test]
    fn the_address_with_most_connections_loses_one_for_others() {
        use Activity::*;
        let full = [(1, Waiting, 99), (2, Waiting, 1), (2, Waiting, 7), (3, Waiting, 50)];
        assert_eq!(decide(&full, 4), Some(2));
        assert_eq!(decide(&full, 1), Some(2));
    }

    #[test]
    fn waiting_connections_are_evicted_before_streams_and_streams_before_handled_requests() {
        use Activity::*;
        assert_eq!(decide(&[(1, Handling, 99), (1, Streaming, 50), (1, Waiting, 0)], 1), Some(2));
        assert_eq!(decide(&[(1, Handling, 99), (1, Streaming, 0), (1, Handling, 50)], 1), Some(1));
        assert_eq!(
            decide(&[(1, Handling, 9), (1, Handling, 99), (1, Handling, 50)], 1),
            Some(1),
            "one is always evicted"
        );
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one() {
        let address = |text: &str| client_network(text.parse().unwrap());
        assert_eq!(address("2001:db8:0:7::1"), address("2001:db8:0:7:ffff::2"));
        assert_ne!(address("2001:db8:0:7::1"), address("2001:db8:0:8::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_freed_when_its_connection_ends_or_is_evicted() {
        let connections = Connections::new(LIMITS);
        let here: IpAddr = [127, 0, 0, 1].into();
        let first = connections.admit(here);
        let second = connections.admit(here);
        tokio::time::advance(Duration::from_secs(1)).await;
        first.connection.progressed();
        let third = connections.admit(here);
        assert_eq!(connections.lock().connections.len(), 3);
        let fourth = connections.admit(here);
        second.connection.evicted().await;
        assert_eq!(connections.lock().connections.len(), 3);
        drop(second);
        assert_eq!(connections.lock().connections.len(), 3, "its slot was freed by the eviction");
        drop((first, third, fourth));
        assert!(connections.lock().connections.is_empty() && !connections.evict_one());
    }
}
