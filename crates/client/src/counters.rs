//! Counters of a mount's requests and bytes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use wire::native::Procedure;
use wire::nfs4::compound::opnum;

/// Counts of a mount's requests and payload bytes since the mount was created.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// RPCs sent, by name (`COMPOUND`, native procedures); each retransmission counts again.
    pub rpcs: Vec<(String, u64)>,
    /// NFS operations sent inside COMPOUNDs, by name (`OPEN`, `LAYOUTGET`), without SEQUENCE.
    pub operations: Vec<(String, u64)>,
    /// Payload bytes read on the direct path, short-circuit reads included.
    pub read_direct: u64,
    /// Payload bytes of short-circuit reads, included in `read_direct`.
    pub read_short_circuit: u64,
    /// Number of short-circuit reads: reads of a local iod's files without a request to the iod.
    pub short_circuit_reads: u64,
    /// Payload bytes read on the mgr path.
    pub read_via_mgr: u64,
    /// Payload bytes that programs read from the client's read-ahead buffers. `read_direct` and `read_via_mgr` also
    /// count these bytes when the client fetches them.
    pub read_ahead: u64,
    /// Payload bytes written on the direct path; bytes that the client sends again count again.
    pub written_direct: u64,
    /// Payload bytes that the mgr accepted on the mgr path; bytes that the client sends again count again.
    pub written_via_mgr: u64,
    /// Number of lookups that the client answered from its negative-lookup cache.
    pub absent: u64,
    /// Number of requests that the client sent again: after a lost connection, a changed write verifier, an expired
    /// capability or NFS4ERR_DELAY.
    pub retries: u64,
    /// Number of connections that the client established again after they broke.
    pub reconnects: u64,
}

impl Counters {
    /// Returns how often the client sent the NFS operation of this name.
    pub fn operation(&self, name: &str) -> u64 {
        self.operations.iter().find(|(n, _)| n == name).map_or(0, |(_, count)| *count)
    }

    /// Returns how often the client sent the RPC of this name.
    pub fn rpc(&self, name: &str) -> u64 {
        self.rpcs.iter().find(|(n, _)| n == name).map_or(0, |(_, count)| *count)
    }
}

/// The counters of a running mount, which the tasks of the mount increment concurrently.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    compounds: AtomicU64,
    operations: Mutex<BTreeMap<u32, u64>>,
    native: Mutex<BTreeMap<Procedure, u64>>,
    pub(crate) read_direct: AtomicU64,
    pub(crate) read_short_circuit: AtomicU64,
    pub(crate) short_circuit_reads: AtomicU64,
    pub(crate) read_via_mgr: AtomicU64,
    pub(crate) read_ahead: AtomicU64,
    pub(crate) written_direct: AtomicU64,
    pub(crate) written_via_mgr: AtomicU64,
    pub(crate) absent: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) reconnects: AtomicU64,
}

/// Adds `n` to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Tally {
    /// Counts one sent COMPOUND, and each of its operations.
    pub(crate) fn compound(&self, operations: impl Iterator<Item = u32>) {
        add(&self.compounds, 1);
        let mut counts = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.for_each(|number| *counts.entry(number).or_default() += 1);
    }

    /// Counts one request of the native protocol.
    pub(crate) fn native(&self, procedure: Procedure) {
        *self.native.lock().unwrap_or_else(PoisonError::into_inner).entry(procedure).or_default() += 1;
    }

    /// Returns a copy of the counters.
    pub(crate) fn snapshot(&self) -> Counters {
        let name = |number: u32| match opnum(number) {
            Some(op) => format!("{op:?}").trim_start_matches("OP_").to_owned(),
            None => number.to_string(),
        };
        let native = self.native.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rpcs = vec![("COMPOUND".to_owned(), self.compounds.load(Relaxed))];
        rpcs.extend(native.iter().map(|(procedure, count)| (procedure.name().to_uppercase(), *count)));
        let operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        Counters {
            rpcs,
            operations: operations.iter().map(|(number, count)| (name(*number), *count)).collect(),
            read_direct: self.read_direct.load(Relaxed),
            read_short_circuit: self.read_short_circuit.load(Relaxed),
            short_circuit_reads: self.short_circuit_reads.load(Relaxed),
            read_via_mgr: self.read_via_mgr.load(Relaxed),
            read_ahead: self.read_ahead.load(Relaxed),
            written_direct: self.written_direct.load(Relaxed),
            written_via_mgr: self.written_via_mgr.load(Relaxed),
            absent: self.absent.load(Relaxed),
            retries: self.retries.load(Relaxed),
            reconnects: self.reconnects.load(Relaxed),
        }
    }
}
