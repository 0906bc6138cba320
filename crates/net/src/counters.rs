//! Counters of the traffic, connections, memory and calls of a process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// Counters shared by any number of connections; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
    refused: AtomicU64,
    cut: AtomicU64,
    malformed: AtomicU64,
    waits: AtomicU64,
    panics: AtomicU64,
    held: AtomicU64,
    held_most: AtomicU64,
    calls: RwLock<HashMap<(bool, u32, u32), AtomicU64>>,
}

/// Maximum number of rows for (direction, program, procedure): peers choose these numbers, so the table must be
/// bounded.
const PAIRS_MAX: usize = 256;

/// The totals of traffic, connections and memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes received, record marks included.
    pub bytes_in: u64,
    /// Bytes sent, record marks included.
    pub bytes_out: u64,
    /// Connections made or accepted so far.
    pub connections_opened: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections refused because there were too many, in total or from one machine.
    pub connections_refused: u64,
    /// Connections closed because the peer made no progress inside a record or a reply, or sent no first request.
    pub connections_cut: u64,
    /// Connections closed because the peer sent bytes that are no record or no RPC message.
    pub connections_malformed: u64,
    /// How often reading from a connection had to wait for memory.
    pub memory_waits: u64,
    /// Bytes counted now for requests in progress and unsent replies.
    pub memory_held: u64,
    /// The maximum of these bytes so far.
    pub memory_most: u64,
    /// Calls that ended in a panic, answered with SYSTEM_ERR.
    pub panics: u64,
}

/// The number of calls of one procedure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallCount {
    /// Whether the calls were incoming (`true`) or outgoing.
    pub incoming: bool,
    /// RPC program number.
    pub program: u32,
    /// RPC procedure number.
    pub procedure: u32,
    /// Number of calls.
    pub count: u64,
}

impl Counters {
    /// Returns the totals so far.
    pub fn traffic(&self) -> Traffic {
        let opened = self.inner.opened.load(Relaxed);
        Traffic {
            bytes_in: self.inner.bytes_in.load(Relaxed),
            bytes_out: self.inner.bytes_out.load(Relaxed),
            connections_opened: opened,
            connections_open: opened.saturating_sub(self.inner.closed.load(Relaxed)),
            connections_refused: self.inner.refused.load(Relaxed),
            connections_cut: self.inner.cut.load(Relaxed),
            connections_malformed: self.inner.malformed.load(Relaxed),
            memory_waits: self.inner.waits.load(Relaxed),
            memory_held: self.inner.held.load(Relaxed),
            memory_most: self.inner.held_most.load(Relaxed),
            panics: self.inner.panics.load(Relaxed),
        }
    }

    /// Returns the calls so far, one row per direction, program and procedure, sorted.
    pub fn calls(&self) -> Vec<CallCount> {
        let calls = self.inner.calls.read().unwrap_or_else(PoisonError::into_inner);
        let row = |(&(incoming, program, procedure), count): (&(bool, u32, u32), &AtomicU64)| CallCount {
            incoming,
            program,
            procedure,
            count: count.load(Relaxed),
        };
        let mut rows: Vec<_> = calls.iter().map(row).collect();
        rows.sort_unstable();
        rows
    }

    pub(crate) fn call(&self, incoming: bool, program: u32, procedure: u32) {
        let key = (incoming, program, procedure);
        {
            let calls = self.inner.calls.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = calls.get(&key) {
                count.fetch_add(1, Relaxed);
                return;
            }
        }
        let mut calls = self.inner.calls.write().unwrap_or_else(PoisonError::into_inner);
        if calls.len() < PAIRS_MAX || calls.contains_key(&key) {
            calls.entry(key).or_default().fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.inner.bytes_in.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.inner.bytes_out.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn opened(&self) {
        self.inner.opened.fetch_add(1, Relaxed);
    }

    pub(crate) fn closed(&self) {
        self.inner.closed.fetch_add(1, Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.inner.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn cut(&self) {
        self.inner.cut.fetch_add(1, Relaxed);
    }

    pub(crate) fn malformed(&self) {
        self.inner.malformed.fetch_add(1, Relaxed);
    }

    pub(crate) fn waited(&self) {
        self.inner.waits.fetch_add(1, Relaxed);
    }

    /// Adds `bytes` to the bytes held.
    pub(crate) fn hold(&self, bytes: usize) {
        let before = self.inner.held.fetch_add(bytes as u64, Relaxed);
        self.inner.held_most.fetch_max(before + bytes as u64, Relaxed);
    }

    /// Subtracts `bytes` from the bytes held.
    pub(crate) fn release(&self, bytes: usize) {
        self.inner.held.fetch_sub(bytes as u64, Relaxed);
    }

    /// Counts a caught panic, of a call or of a task that is restarted.
    pub fn panicked(&self) {
        self.inner.panics.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_rows_is_bounded() {
        let counters = Counters::default();
        for procedure in 0..2 * PAIRS_MAX as u32 {
            counters.call(true, 7, procedure);
            counters.call(true, 7, 0);
        }
        let rows = counters.calls();
        assert_eq!(rows.len(), PAIRS_MAX);
        assert_eq!(rows[0], CallCount { incoming: true, program: 7, procedure: 0, count: 2 * PAIRS_MAX as u64 + 1 });
    }
}
