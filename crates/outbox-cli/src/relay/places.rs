//! Which connections a listener has, and which of them gives way to a new one.
//!
//! A new connection is always let in: probes must be answered while others hold on to theirs. Where all places are taken, or all
//! places of one address, the connection that has made no progress for longest is closed.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How many connections there are at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In all.
    pub(crate) connections: usize,
    /// From one address; of IPv6, from one network of 64 bits.
    pub(crate) per_address: usize,
}

impl Limits {
    /// One address may take a quarter of all places.
    pub(crate) fn of(connections: usize) -> Self {
        Self { connections, per_address: (connections / 4).max(1) }
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Doing {
    /// It waits for a request, or for the client to read an answer.
    Waiting,
    /// It sends a stream of events.
    Streaming,
    /// A request is being handled.
    Handling,
}

/// One connection, as the listener sees it.
pub(crate) struct Connection {
    address: IpAddr,
    began: Instant,
    /// When bytes last went either way, in milliseconds since it began.
    progress: AtomicU64,
    doing: AtomicU8,
    /// Cancelled when it has to give way.
    evicted: CancellationToken,
}

impl Connection {
    fn new(address: IpAddr) -> Self {
        let (progress, doing) = (AtomicU64::new(0), AtomicU8::new(Doing::Waiting as u8));
        Self { address, began: Instant::now(), progress, doing, evicted: CancellationToken::new() }
    }

    /// Bytes went either way.
    pub(crate) fn progressed(&self) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.store(millis, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, doing: Doing) {
        self.doing.store(doing as u8, Ordering::Relaxed);
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.doing.load(Ordering::Relaxed) == Doing::Streaming as u8
    }

    /// Returns when the connection has to give way to another one.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    fn seen(&self) -> Seen {
        let progress = std::time::Duration::from_millis(self.progress.load(Ordering::Relaxed));
        Seen {
            address: self.address,
            // What is handled goes last: a question to the database may take its time without any byte.
            doing: self.doing.load(Ordering::Relaxed),
            progress: self.began + progress,
        }
    }
}

/// What is decided by.
#[derive(Clone, Copy, Debug)]
struct Seen {
    address: IpAddr,
    doing: u8,
    progress: Instant,
}

/// All connections of a listener.
pub(crate) struct Places {
    limits: Limits,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
}

/// The place of one connection, free again when this is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
    pub(crate) connection: Arc<Connection>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().connections.remove(&self.number);
    }
}

impl Places {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.taken.lock().expect("no one panics while holding the places")
    }

    /// A place for a new connection. Another one is closed for it where there is none left.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Place {
        let address = network(address);
        let mut taken = self.lock();
        let seen: Vec<(u64, Seen)> = taken.connections.iter().map(|(n, c)| (*n, c.seen())).collect();
        if let Some(victim) = gives_way(self.limits, &seen, address) {
            taken.evict(victim);
        }
        let number = taken.next;
        taken.next += 1;
        let connection = Arc::new(Connection::new(address));
        taken.connections.insert(number, connection.clone());
        Place { places: self.clone(), number, connection }
    }

    /// Closes one connection, where the process has no file left for another. Returns whether there was one.
    pub(crate) fn make_room(&self) -> bool {
        let mut taken = self.lock();
        let seen: Vec<(u64, Seen)> = taken.connections.iter().map(|(n, c)| (*n, c.seen())).collect();
        let victim = idlest_of_the_largest(&seen);
        victim.is_some_and(|victim| taken.evict(victim))
    }
}

impl Taken {
    /// Its place is free at once; the connection itself ends as soon as its task runs.
    fn evict(&mut self, number: u64) -> bool {
        let evicted = self.connections.remove(&number);
        evicted.inspect(|connection| connection.evicted.cancel()).is_some()
    }
}

/// Which connection has to give way to one from this address, if any.
fn gives_way(limits: Limits, seen: &[(u64, Seen)], from: IpAddr) -> Option<u64> {
    let same = || seen.iter().filter(|(_, seen)| seen.address == from);
    if same().count() >= limits.per_address {
        return idlest(same());
    }
    if seen.len() >= limits.connections {
        return idlest_of_the_largest(seen);
    }
    None
}

/// The idlest connection of the address that has most of them: an address with few keeps them.
fn idlest_of_the_largest(seen: &[(u64, Seen)]) -> Option<u64> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for (_, seen) in seen {
        *counts.entry(seen.address).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    idlest(seen.iter().filter(|(_, seen)| counts[&seen.address] == most))
}

fn idlest<'a>(seen: impl Iterator<Item = &'a (u64, Seen)>) -> Option<u64> {
    seen.min_by_key(|(number, seen)| (seen.doing, seen.progress, *number)).map(|(number, _)| *number)
}

/// An IPv6 address without its lower half: a network of that size is what one host is given.
fn network(address: IpAddr) -> IpAddr {
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

    fn seen(address: u8, doing: Doing, idle: u64) -> Seen {
        let now = Instant::now() + Duration::from_secs(1_000);
        let progress = now - Duration::from_secs(idle);
        Seen { address: [10, 0, 0, address].into(), doing: doing as u8, progress }
    }

    fn decide(connections: &[(u8, Doing, u64)], from: u8) -> Option<u64> {
        let all = connections.iter().map(|(address, doing, idle)| seen(*address, *doing, *idle));
        let all: Vec<(u64, Seen)> = (0..).zip(all).collect();
        gives_way(LIMITS, &all, [10, 0, 0, from].into())
    }

    #[test]
    fn nothing_gives_way_while_there_are_places() {
        use Doing::*;
        assert_eq!(decide(&[], 1), None);
        assert_eq!(decide(&[(1, Waiting, 9), (1, Waiting, 9), (2, Waiting, 9)], 1), None);
    }

    #[test]
    fn an_address_that_has_its_share_gives_way_to_itself() {
        use Doing::*;
        let three = [(2, Waiting, 99), (1, Waiting, 1), (1, Waiting, 7), (1, Waiting, 3)];
        assert_eq!(decide(&three, 1), Some(2));
    }

    #[test]
    fn the_address_with_most_connections_gives_way_to_others() {
        use Doing::*;
        let full = [(1, Waiting, 99), (2, Waiting, 1), (2, Waiting, 7), (3, Waiting, 50)];
        assert_eq!(decide(&full, 4), Some(2));
        assert_eq!(decide(&full, 1), Some(2));
    }

    #[test]
    fn who_waits_goes_before_streams_and_streams_before_requests_that_are_handled() {
        use Doing::*;
        assert_eq!(decide(&[(1, Handling, 99), (1, Streaming, 50), (1, Waiting, 0)], 1), Some(2));
        assert_eq!(decide(&[(1, Handling, 99), (1, Streaming, 0), (1, Handling, 50)], 1), Some(1));
        assert_eq!(
            decide(&[(1, Handling, 9), (1, Handling, 99), (1, Handling, 50)], 1),
            Some(1),
            "one always does"
        );
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one() {
        let address = |text: &str| network(text.parse().unwrap());
        assert_eq!(address("2001:db8:0:7::1"), address("2001:db8:0:7:ffff::2"));
        assert_ne!(address("2001:db8:0:7::1"), address("2001:db8:0:8::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_free_again_when_its_connection_ends_or_gives_way() {
        let places = Places::new(LIMITS);
        let here: IpAddr = [127, 0, 0, 1].into();
        let first = places.take(here);
        let second = places.take(here);
        tokio::time::advance(Duration::from_secs(1)).await;
        first.connection.progressed();
        let third = places.take(here);
        assert_eq!(places.lock().connections.len(), 3);
        let fourth = places.take(here);
        second.connection.evicted().await;
        assert_eq!(places.lock().connections.len(), 3);
        drop(second);
        assert_eq!(places.lock().connections.len(), 3, "its place was another's already");
        drop((first, third, fourth));
        assert!(places.lock().connections.is_empty() && !places.make_room());
    }
}
