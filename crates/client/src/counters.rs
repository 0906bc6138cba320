//! What a mount has done so far, in counts.

/// Counts since the mount was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// RPCs sent, by name (`COMPOUND`, native procedures), each retransmission counted again.
    pub rpcs: Vec<(&'static str, u64)>,
    /// NFS operations sent inside COMPOUNDs, by name.
    pub operations: Vec<(&'static str, u64)>,
    /// Payload bytes read straight from iods.
    pub read_direct: u64,
    /// Payload bytes read through the mgr.
    pub read_via_mgr: u64,
    /// Payload bytes written straight to iods; bytes sent again are counted again.
    pub written_direct: u64,
    /// Payload bytes written through the mgr; bytes sent again are counted again.
    pub written_via_mgr: u64,
    /// Requests sent again: after a lost connection, a new verifier, an expired capability or a DELAY.
    pub retries: u64,
    /// Connections made again after they broke.
    pub reconnects: u64,
}
