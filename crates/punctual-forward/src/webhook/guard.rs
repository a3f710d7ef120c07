//! Restricts webhooks to the public internet.
//!
//! Customers often give the addresses of webhooks. An address can lead to `127.0.0.1`, to a machine of the same
//! network, or to `169.254.169.254`, where clouds serve secrets. The forwarder would then reach services that the
//! customer cannot reach (server-side request forgery). So, unless private addresses are allowed, only `https`
//! without `user@` is accepted. The address of the host is checked, and so is each address that its name resolves to,
//! when the connection is made. The checked address is the one that is used, whatever the name resolves to a moment
//! later (DNS rebinding). Each redirect is checked again.
//!
//! The guard never reads what a host answered, and never remembers one.

use std::{
    error::Error as StdError,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use crate::sink::BoxFuture;

/// The name of this machine, and a suffix of such names.
const OWN_NAME: &str = "localhost";

/// IPv4 ranges that are not single machines on the public internet: address and length of each.
const CLOSED_V4: [([u8; 4], u32); 15] = [
    ([0, 0, 0, 0], 8),       // this network
    ([10, 0, 0, 0], 8),      // private
    ([100, 64, 0, 0], 10),   // behind a provider's translation
    ([127, 0, 0, 0], 8),     // this machine
    ([169, 254, 0, 0], 16),  // this link, and the secrets of clouds
    ([172, 16, 0, 0], 12),   // private
    ([192, 0, 0, 0], 24),    // protocol assignments
    ([192, 0, 2, 0], 24),    // documentation
    ([192, 88, 99, 0], 24),  // relays from IPv6
    ([192, 168, 0, 0], 16),  // private
    ([198, 18, 0, 0], 15),   // benchmarks
    ([198, 51, 100, 0], 24), // documentation
    ([203, 0, 113, 0], 24),  // documentation
    ([224, 0, 0, 0], 4),     // many at once
    ([240, 0, 0, 0], 4),     // reserved, and everybody
];

/// Parts of `2000::/3` that are not single machines on the public internet. Everything outside of it is closed
/// anyway: this machine, private networks (`fc00::/7`), links (`fe80::/10`), multicast (`ff00::/8`), local
/// translation (`64:ff9b:1::/48`).
const CLOSED_V6: [([u16; 2], u32); 3] = [
    ([0x2001, 0], 23),      // protocol assignments, Teredo among them
    ([0x2001, 0x0db8], 32), // documentation
    ([0x3fff, 0], 20),      // documentation
];

/// Returns whether an address is on the public internet.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let is_in = |(range, length): ([u8; 4], u32)| {
        (address.to_bits() ^ Ipv4Addr::from_octets(range).to_bits()) >> (32 - length) == 0
    };
    !CLOSED_V4.into_iter().any(is_in)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let inner =
        |high: u16, low: u16| is_public_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match segments {
        // An IPv4 address inside an IPv6 one, as systems, translators and tunnels write it.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => inner(high, low),
        _ => {
            let head = u32::from(segments[0]) << 16 | u32::from(segments[1]);
            let is_in = |([first, second], length): ([u16; 2], u32)| {
                (head ^ (u32::from(first) << 16 | u32::from(second))) >> (32 - length) == 0
            };
            segments[0] >> 13 == 1 && !CLOSED_V6.into_iter().any(is_in)
        }
    }
}

/// Why a webhook may not use an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// It is not allowed even with private addresses.
    Malformed(String),
    /// It is allowed only with private addresses.
    Private(String),
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => f.write_str(why),
            Self::Private(what) => write!(f, "{what}; private addresses are not allowed here"),
        }
    }
}

impl StdError for Closed {}

/// Resolves a name to its addresses.
type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Checks the addresses of webhooks.
#[derive(Clone)]
pub(super) struct Guard {
    allows_private: bool,
    lookup: Lookup,
}

impl Guard {
    pub(super) fn new(allows_private: bool) -> Self {
        Self::asking(allows_private, |name| {
            Box::pin(async move {
                let addresses = tokio::net::lookup_host((name, 0)).await?;
                Ok(addresses.map(|address| address.ip()).collect())
            })
        })
    }

    pub(super) fn asking(
        allows_private: bool,
        lookup: impl Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync + 'static,
    ) -> Self {
        Self { allows_private, lookup: Arc::new(lookup) }
    }

    /// Checks what an address shows without resolving it. `Url` has already normalised all notations of IPv4: one
    /// number, octal and hexadecimal.
    pub(super) fn judge(&self, url: &Url) -> Result<(), Closed> {
        let malformed = |why: &str| Err(Closed::Malformed(why.to_owned()));
        match url.scheme() {
            "https" => {}
            "http" if self.allows_private => {}
            "http" => return Err(Closed::Private("it is not https".to_owned())),
            _ => return malformed("a webhook's address begins with https://"),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return malformed("a webhook's address has no user in it");
        }
        let (host, is_open) = match url.host() {
            None => return malformed("it has no host"),
            Some(Host::Ipv4(address)) => (address.to_string(), is_public_v4(address)),
            Some(Host::Ipv6(address)) => (address.to_string(), is_public_v6(address)),
            Some(Host::Domain(name)) => (name.to_owned(), !is_own(name)),
        };
        if is_open || self.allows_private {
            return Ok(());
        }
        Err(Closed::Private(format!("{host} is in a private network")))
    }

    /// Returns the addresses of a name that a webhook may use.
    ///
    /// # Errors
    /// [`Closed`] if the name has addresses but none is allowed; otherwise the system's error.
    pub(super) async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Box<dyn StdError + Send + Sync>> {
        let found = (self.lookup)(name.to_owned()).await?;
        if found.is_empty() {
            return Err(format!("{name} has no address").into());
        }
        let open: Vec<_> =
            found.into_iter().filter(|&address| self.allows_private || is_public(address)).collect();
        if open.is_empty() {
            return Err(Closed::Private(format!("{name} is in a private network")).into());
        }
        Ok(open)
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let open = Self::resolve(&guard, name.as_str()).await?;
            // The port is taken from the address.
            let open: Addrs = Box::new(open.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(open)
        })
    }
}

/// Returns whether a name is always one of this machine.
fn is_own(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case(OWN_NAME))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn only_addresses_of_the_public_internet_are_open() {
        for closed in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "3fff::1",
            "3fff:fff::1",
            "fc00::1",
            "fd00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ] {
            assert!(!is_public(closed.parse().unwrap()), "{closed}");
        }
        for open in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.0.0.1",
            "128.0.0.1",
            "169.253.0.1",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.0.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2002:101:101::",
            "2606:4700::1111",
            "2a00::1",
            "3ffe::1",
            "3fff:1000::1",
        ] {
            assert!(is_public(open.parse().unwrap()), "{open}");
        }
    }

    /// Checks IPv4 addresses at all edges of each range against ranges in another notation.
    #[test]
    fn the_edges_of_each_range_are_closed_and_their_neighbours_are_judged_by_others() {
        for (range, length) in CLOSED_V4 {
            let first = Ipv4Addr::from_octets(range);
            let last = Ipv4Addr::from_bits(first.to_bits() | u32::MAX.checked_shr(length).unwrap_or(0));
            assert!(!is_public_v4(first) && !is_public_v4(last), "{first} to {last}");
            let inside = |address: Ipv4Addr| {
                CLOSED_V4.iter().any(|&(other, length)| {
                    let mask = !(u32::MAX >> length);
                    Ipv4Addr::from_octets(other).to_bits() & mask == address.to_bits() & mask
                })
            };
            for beside in
                [first.to_bits().checked_sub(1), last.to_bits().checked_add(1)].into_iter().flatten()
            {
                let beside = Ipv4Addr::from_bits(beside);
                assert_eq!(is_public_v4(beside), !inside(beside), "{beside}");
            }
        }
    }

    #[test]
    fn addresses_are_judged_however_they_are_written() {
        let guard = Guard::new(false);
        let judge = |url: &str| guard.judge(&Url::parse(url).unwrap());
        for private in [
            "https://127.0.0.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://0x7f.1/",
            "https://127.1/",
            "https://0/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[fd00::1]:8443/",
            "https://169.254.169.254/latest/meta-data/",
            "https://100.64.0.1/",
            "https://localhost/",
            "https://LOCALHOST/",
            "https://localhost./",
            "https://a.localhost/",
            "https://１２７.０.０.１/",
            "http://example.com/",
        ] {
            assert!(matches!(judge(private), Err(Closed::Private(_))), "{private}: {:?}", judge(private));
        }
        for malformed in [
            "https://user@example.com/",
            "https://user:password@example.com/",
            "https://:p@example.com/",
            "gopher://example.com/",
            "unix:/run/docker.sock",
            "file:///etc/passwd",
            "ftp://example.com/",
        ] {
            assert!(matches!(judge(malformed), Err(Closed::Malformed(_))), "{malformed}");
        }
        assert_eq!(judge("https://example.com:8443/x"), Ok(()));
        let guard = Guard::new(true);
        assert_eq!(guard.judge(&Url::parse("http://127.0.0.1:1/").unwrap()), Ok(()));
    }

    /// The checked address is the one that is used: a name that is public first and private a moment later leads
    /// nowhere.
    #[tokio::test]
    async fn a_name_that_changes_its_mind_leads_only_to_public_addresses() {
        let answers =
            Mutex::new(vec![vec!["127.0.0.1"], vec!["1.1.1.1", "10.0.0.1", "::1"], vec!["1.1.1.1"]]);
        let guard = Guard::asking(false, move |_| {
            let next = answers.lock().unwrap().pop().unwrap();
            Box::pin(async move { Ok(next.into_iter().map(|text| text.parse().unwrap()).collect()) })
        });
        for _ in 0..2 {
            let name = "rebind.example".parse().unwrap();
            let found: Vec<_> = Resolve::resolve(&guard, name).await.ok().unwrap().collect();
            assert_eq!(found, [SocketAddr::new("1.1.1.1".parse().unwrap(), 0)]);
        }
        let error = Resolve::resolve(&guard, "rebind.example".parse().unwrap()).await.err().unwrap();
        assert!(matches!(error.downcast_ref(), Some(Closed::Private(_))), "{error}");
    }
}
