//! Limits attempts to guess tokens.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Maximum number of addresses that are tracked; the one with the oldest failure is evicted first.
const MAX_ADDRESSES: usize = 10_000;

/// Failed attempts by address (IPv6: by /64 network): one token bucket each, refilled over a
/// minute.
pub(crate) struct Throttle {
    /// Number of attempts that may fail per minute.
    per_minute: u32,
    failed: Mutex<HashMap<Option<IpAddr>, Bucket>>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

impl Throttle {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute, failed: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Option<IpAddr>, Bucket>> {
        self.failed.lock().expect("the lock on the failed attempts is never poisoned")
    }

    /// Remaining wait before another wrong token of this address gets a 401 again. Clients with an
    /// unknown address share one bucket.
    pub(crate) fn wait(&self, of: Option<IpAddr>, now: Instant) -> Option<Duration> {
        let failed = self.lock();
        let left = self.left(failed.get(&of.map(network))?, now);
        (left < 1.0).then(|| Duration::from_secs_f64((1.0 - left) * 60.0 / f64::from(self.per_minute)))
    }

    /// Records a failed attempt.
    pub(crate) fn count(&self, of: Option<IpAddr>, now: Instant) {
        let of = of.map(network);
        let mut failed = self.lock();
        if failed.len() >= MAX_ADDRESSES
            && !failed.contains_key(&of)
            && let Some(oldest) = failed.iter().min_by_key(|(_, bucket)| bucket.at).map(|(ip, _)| *ip)
        {
            failed.remove(&oldest);
        }
        let full = Bucket { left: f64::from(self.per_minute), at: now };
        let bucket = failed.entry(of).or_insert(full);
        *bucket = Bucket { left: (self.left(bucket, now) - 1.0).max(0.0), at: now };
    }

    fn left(&self, bucket: &Bucket, now: Instant) -> f64 {
        let refilled = now.duration_since(bucket.at).as_secs_f64() * f64::from(self.per_minute) / 60.0;
        (bucket.left + refilled).min(f64::from(self.per_minute))
    }
}

/// An IPv6 address reduced to its /64 network, which is usually assigned to one host.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_too_many_failures_an_address_waits_and_others_do_not() {
        let throttle = Throttle::new(10);
        let (bad, good) = (Some([10, 0, 0, 1].into()), Some([10, 0, 0, 2].into()));
        let now = Instant::now();
        for _ in 0..10 {
            assert_eq!(throttle.wait(bad, now), None);
            throttle.count(bad, now);
        }
        assert_eq!(throttle.wait(bad, now), Some(Duration::from_secs(6)));
        assert_eq!(throttle.wait(good, now), None);
        assert_eq!(throttle.wait(bad, now + Duration::from_secs(6)), None);
        throttle.count(bad, now + Duration::from_secs(6));
        assert!(throttle.wait(bad, now + Duration::from_secs(6)).is_some());
        assert_eq!(throttle.wait(bad, now + Duration::from_secs(66)), None);
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let throttle = Throttle::new(3);
        let now = Instant::now();
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        for one in ["2001:db8:0:7::1", "2001:db8:0:7::2", "2001:db8:0:7:ffff:ffff:ffff:ffff"] {
            throttle.count(address(one), now);
        }
        assert!(throttle.wait(address("2001:db8:0:7::42"), now).is_some());
        assert!(throttle.wait(address("2001:db8:0:8::42"), now).is_none());
        for _ in 0..3 {
            throttle.count(address("::ffff:10.0.0.1"), now);
        }
        assert!(throttle.wait(address("10.0.0.1"), now).is_some(), "the same address in another spelling");
        assert!(throttle.wait(address("::ffff:10.0.0.2"), now).is_none());
    }

    #[test]
    fn the_number_of_tracked_addresses_is_bounded() {
        let throttle = Throttle::new(1);
        let now = Instant::now();
        for n in 0..u32::try_from(MAX_ADDRESSES).unwrap() + 10 {
            throttle.count(Some(IpAddr::from(n.to_be_bytes())), now);
        }
        assert_eq!(throttle.lock().len(), MAX_ADDRESSES);
    }
}
