//! What a mount has done so far, in counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use wire::native::Procedure;
use wire::nfs4::compound::opnum;

/// Counts since the mount was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// RPCs sent, by name (`COMPOUND`, native procedures), each retransmission counted again.
    pub rpcs: Vec<(String, u64)>,
    /// NFS operations sent inside COMPOUNDs, by name (`OPEN`, `LAYOUTGET`), SEQUENCE left out.
    pub operations: Vec<(String, u64)>,
    /// Payload bytes read straight from iods, or from files that they lent.
    pub read_direct: u64,
    /// Payload bytes read from files that iods lent; they are among those read straight.
    pub read_lent: u64,
    /// How many requests needed no iod because its file was lent.
    pub reads_lent: u64,
    /// Payload bytes read through the mgr.
    pub read_via_mgr: u64,
    /// Bytes that readers found read ahead; they are among those read, too.
    pub read_ahead: u64,
    /// Payload bytes written straight to iods; bytes sent again are counted again.
    pub written_direct: u64,
    /// Payload bytes written that the mgr took; bytes that it took again are counted again.
    pub written_via_mgr: u64,
    /// Names looked for that were known not to be there, so that nobody was asked.
    pub absent: u64,
    /// Requests sent again: after a lost connection, a new verifier, an expired capability or a DELAY.
    pub retries: u64,
    /// Connections made again after they broke.
    pub reconnects: u64,
}

impl Counters {
    /// How often the NFS operation of this name was sent.
    pub fn operation(&self, name: &str) -> u64 {
        self.operations.iter().find(|(n, _)| n == name).map_or(0, |(_, count)| *count)
    }

    /// How often the RPC of this name was sent.
    pub fn rpc(&self, name: &str) -> u64 {
        self.rpcs.iter().find(|(n, _)| n == name).map_or(0, |(_, count)| *count)
    }
}

/// The counters while they count.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    compounds: AtomicU64,
    operations: Mutex<BTreeMap<u32, u64>>,
    native: Mutex<BTreeMap<Procedure, u64>>,
    pub(crate) read_direct: AtomicU64,
    pub(crate) read_lent: AtomicU64,
    pub(crate) reads_lent: AtomicU64,
    pub(crate) read_via_mgr: AtomicU64,
    pub(crate) read_ahead: AtomicU64,
    pub(crate) written_direct: AtomicU64,
    pub(crate) written_via_mgr: AtomicU64,
    pub(crate) absent: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) reconnects: AtomicU64,
}

/// Adds to one counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Tally {
    /// One COMPOUND with these operations leaves.
    pub(crate) fn compound(&self, operations: impl Iterator<Item = u32>) {
        add(&self.compounds, 1);
        let mut counts = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.for_each(|number| *counts.entry(number).or_default() += 1);
    }

    /// One native request leaves.
    pub(crate) fn native(&self, procedure: Procedure) {
        *self.native.lock().unwrap_or_else(PoisonError::into_inner).entry(procedure).or_default() += 1;
    }

    /// The counts now.
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
            read_lent: self.read_lent.load(Relaxed),
            reads_lent: self.reads_lent.load(Relaxed),
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
