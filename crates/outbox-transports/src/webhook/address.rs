//! Which addresses a webhook may go to: those of the public internet, and those that are allowed by name.
//!
//! Whoever chooses a webhook's address, or owns the DNS behind it, would otherwise reach what only this machine can: databases,
//! dashboards, the metadata of a cloud.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::Text;

/// Says where requests may go.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    hosts: Vec<String>,
    networks: Vec<Network>,
}

impl Gate {
    /// Open to the public internet, and to these hosts and networks.
    pub(super) fn new(allow: &[Text]) -> Result<Self, String> {
        let mut gate = Self::default();
        for entry in allow {
            let entry = entry.as_str().trim().to_ascii_lowercase();
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if let Ok(network) = entry.parse() {
                gate.networks.push(network);
            } else if !entry.is_empty() && entry.chars().all(plain) {
                gate.hosts.push(entry);
            } else {
                return Err(format!(
                    "allow: {entry:?} is neither a host (`hooks.internal`) nor an address or network (`10.1.0.0/16`)"
                ));
            }
        }
        Ok(gate)
    }

    /// Whether this host, a name or an address, is allowed by what it is called.
    pub(super) fn knows(&self, host: &str) -> bool {
        match literal(host) {
            Some(address) => self.networks.iter().any(|network| network.contains(address)),
            None => self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)),
        }
    }

    /// Whether this address may be connected to.
    pub(super) fn admits(&self, address: IpAddr) -> bool {
        is_public(address) || self.networks.iter().any(|network| network.contains(address))
    }

    /// The addresses of a host that may be connected to. Without any, and without an answer, it fails.
    pub(super) async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        if let Some(address) = literal(host) {
            return if self.admits(address) { Ok(vec![address]) } else { Err(refused(host)) };
        }
        let found = tokio::net::lookup_host((host, 0)).await;
        let found = found.map_err(|error| format!("{host} cannot be resolved: {error}"))?;
        let by_name = self.knows(host);
        let open: Vec<IpAddr> =
            found.map(|address| address.ip()).filter(|address| by_name || self.admits(*address)).collect();
        if open.is_empty() { Err(refused(host)) } else { Ok(open) }
    }
}

/// Without the address: who may read the error is not always who may know the network.
pub(super) fn refused(host: &str) -> String {
    format!("{host} is not on the public internet; if that is meant, name it in `allow`")
}

/// The client asks this and nobody else, and connects to what it is told.
pub(super) struct Checked(pub(super) Arc<Gate>);

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let gate = self.0.clone();
        Box::pin(async move {
            let addresses = gate.addresses(name.as_str()).await?;
            // The port is the URL's.
            Ok(Box::new(addresses.into_iter().map(|address| (address, 0_u16).into())) as Addrs)
        })
    }
}

/// The address, if the host of a URL is one.
fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

/// Addresses that start with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    start: IpAddr,
    bits: u8,
}

impl Network {
    const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Self {
        Self { start: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), bits }
    }

    /// By its first three groups; the others are zero.
    const fn v6(a: u16, b: u16, c: u16, bits: u8) -> Self {
        Self { start: IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)), bits }
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.start, address) {
            (IpAddr::V4(start), IpAddr::V4(address)) => {
                let differ = start.to_bits() ^ address.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(start), IpAddr::V6(address)) => {
                let differ = start.to_bits() ^ address.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = ();

    fn from_str(written: &str) -> Result<Self, ()> {
        let (start, bits) = match written.split_once('/') {
            Some((start, bits)) => (start, Some(bits.parse().map_err(drop)?)),
            None => (written, None),
        };
        let start = literal(start).ok_or(())?;
        let most = if start.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most { Err(()) } else { Ok(Self { start, bits }) }
    }
}

/// What of IPv4 is not the public internet.
const CLOSED_V4: [Network; 16] = [
    Network::v4(0, 0, 0, 0, 8),        // this network; 0.0.0.0 is this machine
    Network::v4(10, 0, 0, 0, 8),       // private
    Network::v4(100, 64, 0, 0, 10),    // behind a carrier's NAT
    Network::v4(127, 0, 0, 0, 8),      // loopback
    Network::v4(168, 63, 129, 16, 32), // the metadata of a cloud that keeps it at a public address
    Network::v4(169, 254, 0, 0, 16),   // link-local, the metadata of most clouds among them
    Network::v4(172, 16, 0, 0, 12),    // private
    Network::v4(192, 0, 0, 0, 24),     // protocol assignments
    Network::v4(192, 0, 2, 0, 24),     // documentation
    Network::v4(192, 88, 99, 0, 24),   // relays of 6to4
    Network::v4(192, 168, 0, 0, 16),   // private
    Network::v4(198, 18, 0, 0, 15),    // benchmarks
    Network::v4(198, 51, 100, 0, 24),  // documentation
    Network::v4(203, 0, 113, 0, 24),   // documentation
    Network::v4(224, 0, 0, 0, 4),      // multicast
    Network::v4(240, 0, 0, 0, 4),      // reserved, broadcast
];

/// The one IPv6 network of the public internet. Loopback, unspecified, link-local, unique local and multicast addresses, IPv4 in
/// IPv6 (`::ffff:0:0/96`) and NAT64 (`64:ff9b::/96`) are all outside of it.
const OPEN_V6: Network = Network::v6(0x2000, 0, 0, 3);

/// What of that is not public after all.
const CLOSED_V6: [Network; 4] = [
    Network::v6(0x2001, 0, 0, 23), // protocol assignments, Teredo (IPv4 in IPv6) among them
    Network::v6(0x2001, 0xdb8, 0, 32), // documentation
    Network::v6(0x2002, 0, 0, 16), // 6to4: IPv4 in IPv6
    Network::v6(0x3fff, 0, 0, 20), // documentation
];

fn is_public(address: IpAddr) -> bool {
    let inside = |networks: &[Network]| networks.iter().any(|network| network.contains(address));
    match address {
        IpAddr::V4(_) => !inside(&CLOSED_V4),
        IpAddr::V6(_) => OPEN_V6.contains(address) && !inside(&CLOSED_V6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(allow: &[&str]) -> Gate {
        Gate::new(&allow.iter().map(|entry| Text::from(*entry)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn only_public_addresses_are_open() {
        for address in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.8.8.8",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "100::1",
        ] {
            assert!(!gate(&[]).admits(address.parse().unwrap()), "{address}");
        }
        for address in
            ["8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1", "168.63.129.17"]
        {
            assert!(gate(&[]).admits(address.parse().unwrap()), "{address}");
        }
        for address in ["2606:4700:4700::1111", "2a00:1450::1", "2001:4860:4860::8888"] {
            assert!(gate(&[]).admits(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn what_is_allowed_is_open_and_nothing_beside_it() {
        let gate = gate(&["10.1.0.0/16", "fd00::/8", "127.0.0.1", "Hooks.Internal"]);
        for address in ["10.1.2.3", "fd12::1", "127.0.0.1"] {
            assert!(gate.admits(address.parse().unwrap()), "{address}");
        }
        for address in ["10.2.0.0", "fc00::1", "127.0.0.2", "::ffff:10.1.2.3", "169.254.169.254"] {
            assert!(!gate.admits(address.parse().unwrap()), "{address}");
        }
        for (host, known) in [
            ("hooks.internal", true),
            ("hooks.internal.example.com", false),
            ("10.1.9.9", true),
            ("[fd00::1]", true),
            ("8.8.8.8", false),
        ] {
            assert_eq!(gate.knows(host), known, "{host}");
        }
    }

    #[test]
    fn mistakes_in_the_list_are_named() {
        for entry in ["", "10.0.0.0/33", "https://hooks.internal", "a b", "::/129"] {
            let error = Gate::new(&[entry.into()]).unwrap_err();
            assert!(error.starts_with("allow: "), "{entry}: {error}");
        }
    }

    #[tokio::test]
    async fn a_name_is_only_as_good_as_what_it_resolves_to() {
        let refused = gate(&[]).addresses("localhost").await.unwrap_err();
        assert_eq!(refused, "localhost is not on the public internet; if that is meant, name it in `allow`");
        for allowed in ["localhost", "127.0.0.0/8"] {
            assert!(!gate(&[allowed]).addresses("localhost").await.unwrap().is_empty(), "{allowed}");
        }
        let nowhere = gate(&[]).addresses("no-such-host.invalid").await.unwrap_err();
        assert!(nowhere.starts_with("no-such-host.invalid cannot be resolved: "), "{nowhere}");
    }
}
