//! The machine that a request comes from. All clients share the limits of a server, and the server gives each machine a
//! fair share of these limits.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A machine, as far as a server can distinguish machines. Each user of the server's own machine counts as a machine of
/// its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Machine {
    /// A user of the server's own machine, with the user id that the kernel reports.
    Local(u32),
    /// The root user of the machine with this address. Only root can use a client port below 1024.
    Root(IpAddr),
    /// Any user of the machine with this address. [`Machine::at`] replaces all addresses that one machine can easily
    /// have, such as those of an IPv6 /64 network, by one address.
    At(IpAddr),
}

impl Machine {
    /// The machine of a request whose source address and user are unknown.
    pub const UNKNOWN: Machine = Machine::At(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

    /// Returns the machine of a peer with this address and port.
    pub fn of(address: IpAddr, port: u16) -> Self {
        if port < 1024 { Machine::Root(address.to_canonical()) } else { Machine::at(address) }
    }

    /// Returns the machine of an address. All IPv4 loopback addresses are one machine, and each IPv6 /64 network is
    /// one machine.
    pub fn at(address: IpAddr) -> Self {
        Machine::At(match address.to_canonical() {
            IpAddr::V4(v4) if v4.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        })
    }
}

/// Returns whether a machine has used its full share of a limit of `max` items, such as connections. The machine uses
/// `own` items, and all machines together use `all` items. The share of the machine is full when it uses at least as
/// many items as are free.
pub fn is_share_full(own: usize, all: usize, max: usize) -> bool {
    own >= max.saturating_sub(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_one_machine_can_choose_count_as_one_machine() {
        let of = |text: &str| Machine::at(text.parse().unwrap());
        assert_eq!(of("127.0.0.1"), of("127.255.1.7"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_eq!(of("fd00:1:2:3::1"), of("fd00:1:2:3:ffff::"));
        assert_ne!(of("fd00:1:2:3::1"), of("fd00:1:2:4::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        let root = |text: &str| Machine::of(text.parse().unwrap(), 1023);
        assert_ne!(root("fd00:1:2:3::1"), root("fd00:1:2:3::2"), "nodes of a cluster share a /64");
        assert_ne!(root("10.0.0.1"), of("10.0.0.1"), "users of a machine do not keep its root out");
    }

    #[test]
    fn each_machine_gets_at_most_half_of_what_is_left() {
        let mut all = 0;
        for _ in 0..6 {
            let (before, mut own) = (1000 - all, 0);
            while !is_share_full(own, all, 1000) {
                (own, all) = (own + 1, all + 1);
            }
            assert_eq!(own, before.div_ceil(2));
        }
    }
}
