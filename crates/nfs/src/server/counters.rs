//! Counters of the NFS server, for benchmarks and operators.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::nfs4::compound::opnum;
use wire::nfs4::nfsstat4;

/// Number of operation numbers that have a counter of their own. All higher operation numbers share one counter
/// (OP_ILLEGAL).
const NUMBERS: usize = 76;

/// How often one NFS operation has succeeded and failed since the server started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpCount {
    /// The operation number (`nfs_opnum4`).
    pub number: u32,
    /// Number of times that the operation succeeded (NFS4_OK).
    pub ok: u64,
    /// Number of times that the operation failed.
    pub failed: u64,
}

/// A snapshot of all counters since the server started. No counter decreases.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Number of COMPOUNDs received, retries included.
    pub compounds: u64,
    /// Number of retries that the server answered from the reply cache.
    pub replays: u64,
    /// Counters of each operation that occurred at least once.
    pub ops: Vec<OpCount>,
    /// Payload bytes that this server sent in replies to READ and READ_PLUS.
    pub read_bytes: u64,
    /// Payload bytes that this server wrote for WRITE.
    pub write_bytes: u64,
    /// Payload bytes that COPY moved, through this server or directly between data servers.
    pub copied_bytes: u64,
    /// Number of CB_LAYOUTRECALLs and CB_RECALLs sent, repetitions included.
    pub recalls: u64,
    /// Number of layouts granted.
    pub layouts: u64,
}

impl Counters {
    /// Returns the counters of the operation with this number.
    pub fn op(&self, number: u32) -> OpCount {
        let found = self.ops.iter().find(|c| c.number == number).copied();
        found.unwrap_or(OpCount { number, ok: 0, failed: 0 })
    }
}

#[derive(Debug)]
pub(super) struct Counting {
    pub(super) compounds: AtomicU64,
    pub(super) replays: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) write_bytes: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    pub(super) recalls: AtomicU64,
    pub(super) layouts: AtomicU64,
    ops: [[AtomicU64; 2]; NUMBERS + 1],
}

impl Default for Counting {
    fn default() -> Self {
        Counting {
            compounds: AtomicU64::new(0),
            replays: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            recalls: AtomicU64::new(0),
            layouts: AtomicU64::new(0),
            ops: [const { [const { AtomicU64::new(0) }; 2] }; NUMBERS + 1],
        }
    }
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Counting {
    pub(super) fn op(&self, number: u32, status: nfsstat4) {
        let index = (number as usize).min(NUMBERS);
        add(&self.ops[index][usize::from(status != nfsstat4::NFS4_OK)], 1);
    }

    pub(super) fn snapshot(&self) -> Counters {
        let count = |(i, [ok, failed]): (usize, &[AtomicU64; 2])| {
            let number = if i == NUMBERS { wire::nfs4::OP_ILLEGAL as u32 } else { i as u32 };
            OpCount { number, ok: ok.load(Relaxed), failed: failed.load(Relaxed) }
        };
        Counters {
            compounds: self.compounds.load(Relaxed),
            replays: self.replays.load(Relaxed),
            ops: self.ops.iter().enumerate().map(count).filter(|c| c.ok + c.failed > 0).collect(),
            read_bytes: self.read_bytes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            copied_bytes: self.copied_bytes.load(Relaxed),
            recalls: self.recalls.load(Relaxed),
            layouts: self.layouts.load(Relaxed),
        }
    }
}

impl OpCount {
    /// Returns the name of the operation, for example `LAYOUTGET`, for display.
    pub fn name(&self) -> String {
        opnum(self.number).map_or_else(|| "OP_ILLEGAL".into(), |op| format!("{op:?}"))
    }
}
