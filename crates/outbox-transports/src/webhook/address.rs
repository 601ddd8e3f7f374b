//! Addresses that a webhook may connect to: the public internet, and hosts and networks in `allow`.
//!
//! Without this check, a user who sets a webhook's URL, or the owner of its DNS zone, could reach
//! services that only this machine can reach: databases, dashboards, cloud metadata.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use outbox::Unavailable;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::{PublisherSettingsError, Text};

/// Decides which hosts and addresses requests may go to.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressPolicy {
    hosts: Vec<String>,
    networks: Vec<Network>,
}

impl AddressPolicy {
    /// Allows the public internet, and these hosts and networks.
    pub(super) fn new(allow: &[Text]) -> Result<Self, PublisherSettingsError> {
        let mut policy = Self::default();
        for entry in allow {
            let entry = entry.as_str().trim().to_ascii_lowercase();
            let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if let Ok(network) = entry.parse() {
                policy.networks.push(network);
            } else if !entry.is_empty() && entry.chars().all(is_host_char) {
                policy.hosts.push(entry);
            } else {
                let expected = "a host (`hooks.internal`) nor an address or network (`10.1.0.0/16`)";
                let reason = format!("{entry:?} is neither {expected}");
                return Err(PublisherSettingsError::value("allow", reason));
            }
        }
        Ok(policy)
    }

    /// Whether `allow` contains this host, a name or an address.
    pub(super) fn allows_host(&self, host: &str) -> bool {
        match ip_literal(host) {
            Some(address) => self.networks.iter().any(|network| network.contains(address)),
            None => self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host)),
        }
    }

    /// Whether requests may connect to this address.
    pub(super) fn allows_address(&self, address: IpAddr) -> bool {
        is_public(address) || self.networks.iter().any(|network| network.contains(address))
    }

    /// Resolves a host to the addresses that requests may connect to. Fails if the host does not
    /// resolve or none of its addresses is allowed.
    pub(super) async fn resolve_allowed(&self, host: &str) -> Result<Vec<IpAddr>, Unavailable> {
        if let Some(address) = ip_literal(host) {
            Unavailable::unless(self.allows_address(address), not_public(host))?;
            return Ok(vec![address]);
        }
        let found = tokio::net::lookup_host((host, 0)).await;
        let found =
            found.map_err(|error| Unavailable::new(format_args!("{host} cannot be resolved: {error}")))?;
        let host_is_allowed = self.allows_host(host);
        let allowed: Vec<IpAddr> = found
            .map(|address| address.ip())
            .filter(|address| host_is_allowed || self.allows_address(*address))
            .collect();
        Unavailable::unless(!allowed.is_empty(), not_public(host))?;
        Ok(allowed)
    }
}

/// Omits the address: a reader of the error may not be entitled to know the network.
pub(super) fn not_public(host: &str) -> String {
    format!("{host} is not on the public internet; add it to `allow` if that is intended")
}

/// The client's only resolver. The client connects to the addresses that were checked here.
pub(super) struct CheckedResolver(pub(super) Arc<AddressPolicy>);

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.0.clone();
        Box::pin(async move {
            let addresses = policy.resolve_allowed(name.as_str()).await?;
            // The URL sets the port.
            Ok(Box::new(addresses.into_iter().map(|address| (address, 0_u16).into())) as Addrs)
        })
    }
}

/// The address, if the host of a URL is an IP address.
fn ip_literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

/// A network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    start: IpAddr,
    bits: u8,
}

impl Network {
    const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Self {
        Self { start: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), bits }
    }

    /// A network by its first three groups; the others are zero.
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

    fn from_str(text: &str) -> Result<Self, ()> {
        let (start, bits) = match text.split_once('/') {
            Some((start, bits)) => (start, Some(bits.parse().map_err(drop)?)),
            None => (text, None),
        };
        let start = ip_literal(start).ok_or(())?;
        let max_bits = if start.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(max_bits);
        if bits > max_bits { Err(()) } else { Ok(Self { start, bits }) }
    }
}

/// IPv4 networks that are not public.
const NON_PUBLIC_V4: [Network; 16] = [
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

/// The IPv6 network of the public internet. Loopback, unspecified, link-local, unique local and
/// multicast addresses, IPv4-mapped addresses (`::ffff:0:0/96`) and NAT64 (`64:ff9b::/96`) are
/// outside of it.
const GLOBAL_UNICAST_V6: Network = Network::v6(0x2000, 0, 0, 3);

/// Networks inside [`GLOBAL_UNICAST_V6`] that are not public.
const NON_PUBLIC_V6: [Network; 4] = [
    Network::v6(0x2001, 0, 0, 23), // protocol assignments, Teredo (IPv4 in IPv6) among them
    Network::v6(0x2001, 0xdb8, 0, 32), // documentation
    Network::v6(0x2002, 0, 0, 16), // 6to4: IPv4 in IPv6
    Network::v6(0x3fff, 0, 0, 20), // documentation
];

fn is_public(address: IpAddr) -> bool {
    let inside = |networks: &[Network]| networks.iter().any(|network| network.contains(address));
    match address {
        IpAddr::V4(_) => !inside(&NON_PUBLIC_V4),
        IpAddr::V6(_) => GLOBAL_UNICAST_V6.contains(address) && !inside(&NON_PUBLIC_V6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str]) -> AddressPolicy {
        AddressPolicy::new(&allow.iter().map(|entry| Text::from(*entry)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn only_public_addresses_are_allowed_by_default() {
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
            assert!(!policy(&[]).allows_address(address.parse().unwrap()), "{address}");
        }
        for address in
            ["8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1", "168.63.129.17"]
        {
            assert!(policy(&[]).allows_address(address.parse().unwrap()), "{address}");
        }
        for address in ["2606:4700:4700::1111", "2a00:1450::1", "2001:4860:4860::8888"] {
            assert!(policy(&[]).allows_address(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn listed_hosts_and_networks_are_allowed_and_no_others() {
        let policy = policy(&["10.1.0.0/16", "fd00::/8", "127.0.0.1", "Hooks.Internal"]);
        for address in ["10.1.2.3", "fd12::1", "127.0.0.1"] {
            assert!(policy.allows_address(address.parse().unwrap()), "{address}");
        }
        for address in ["10.2.0.0", "fc00::1", "127.0.0.2", "::ffff:10.1.2.3", "169.254.169.254"] {
            assert!(!policy.allows_address(address.parse().unwrap()), "{address}");
        }
        for (host, allowed) in [
            ("hooks.internal", true),
            ("hooks.internal.example.com", false),
            ("10.1.9.9", true),
            ("[fd00::1]", true),
            ("8.8.8.8", false),
        ] {
            assert_eq!(policy.allows_host(host), allowed, "{host}");
        }
    }

    #[test]
    fn invalid_entries_of_the_list_are_named() {
        for entry in ["", "10.0.0.0/33", "https://hooks.internal", "a b", "::/129"] {
            let error = AddressPolicy::new(&[entry.into()]).unwrap_err();
            assert!(error.to_string().starts_with("allow: "), "{entry}: {error}");
        }
    }

    #[tokio::test]
    async fn a_name_is_checked_by_the_addresses_it_resolves_to() {
        let not_public = policy(&[]).resolve_allowed("localhost").await.unwrap_err();
        assert_eq!(
            not_public.reason(),
            "localhost is not on the public internet; add it to `allow` if that is intended"
        );
        for allowed in ["localhost", "127.0.0.0/8"] {
            assert!(!policy(&[allowed]).resolve_allowed("localhost").await.unwrap().is_empty(), "{allowed}");
        }
        let unresolved = policy(&[]).resolve_allowed("no-such-host.invalid").await.unwrap_err();
        assert!(unresolved.reason().starts_with("no-such-host.invalid cannot be resolved: "), "{unresolved}");
    }
}
