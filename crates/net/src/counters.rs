//! Counters of a process for the traffic, the memory and the calls of its RPC connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// Counters that several connections share. A clone refers to the same counters.
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

/// Maximum number of rows in the table of call counts by direction (incoming or outgoing), program and procedure.
/// Peers choose the numbers of programs and procedures, so the table must be bounded.
const PAIRS_MAX: usize = 256;

/// A snapshot of the counters of traffic, connections and memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes that the process has received, including record marks.
    pub bytes_in: u64,
    /// Bytes that the process has sent, including record marks.
    pub bytes_out: u64,
    /// Number of connections that the process has made or accepted.
    pub connections_opened: u64,
    /// Number of connections that are open now.
    pub connections_open: u64,
    /// Number of connections that the server refused because too many were open, in total or from one machine.
    pub connections_refused: u64,
    /// Number of connections that this process closed because the peer made no progress inside a record or a reply, or
    /// sent no first request.
    pub connections_cut: u64,
    /// Number of connections that this process closed because the peer sent bytes that are no valid record or RPC
    /// message.
    pub connections_malformed: u64,
    /// Number of times that a connection had to wait for memory before it could receive a record or execute a call.
    pub memory_waits: u64,
    /// Bytes of memory that requests in progress and unsent replies hold now.
    pub memory_held: u64,
    /// The largest value that `memory_held` has had.
    pub memory_most: u64,
    /// Number of panics in calls (to which the server replied with SYSTEM_ERR) and in background tasks (which the
    /// process restarted).
    pub panics: u64,
}

/// The number of incoming or of outgoing calls of one RPC procedure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallCount {
    /// True for calls that peers made, false for calls that this process made.
    pub incoming: bool,
    /// RPC program number.
    pub program: u32,
    /// RPC procedure number.
    pub procedure: u32,
    /// Number of calls of this procedure since the process started.
    pub count: u64,
}

impl Counters {
    /// Returns the current values of the counters of traffic, connections and memory.
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

    /// Returns the number of calls so far, in one row for each direction (incoming or outgoing), program and
    /// procedure. The rows are sorted.
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

    /// Adds `bytes` to the memory that requests and replies hold.
    pub(crate) fn hold(&self, bytes: usize) {
        let before = self.inner.held.fetch_add(bytes as u64, Relaxed);
        self.inner.held_most.fetch_max(before + bytes as u64, Relaxed);
    }

    /// Subtracts `bytes` from the memory that requests and replies hold.
    pub(crate) fn release(&self, bytes: usize) {
        self.inner.held.fetch_sub(bytes as u64, Relaxed);
    }

    /// Counts a panic of a call or of a background task, which the caller has caught.
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
