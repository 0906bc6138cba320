//! Counters of a replay, added up over all its clients.

use client::Counters;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::{Add, Sub};

/// Counters of the clients, added up; all zero if the replay does not use a Weir file system.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sums {
    /// Number of RPCs that the clients sent, by name of the procedure.
    pub rpcs: BTreeMap<String, u64>,
    /// Number of NFS operations in the RPCs that the clients sent, by name of the operation.
    pub operations: BTreeMap<String, u64>,
    /// Payload bytes that the clients read on the direct path.
    pub read_direct: u64,
    /// Payload bytes of short-circuit reads; `read_direct` includes them.
    pub read_short_circuit: u64,
    /// Number of short-circuit reads, which send no request to an iod.
    pub short_circuit_reads: u64,
    /// Payload bytes that the clients read on the mgr path.
    pub read_via_mgr: u64,
    /// Payload bytes that the clients wrote on the direct path.
    pub written_direct: u64,
    /// Payload bytes that the clients wrote on the mgr path.
    pub written_via_mgr: u64,
    /// Number of requests that the clients repeated.
    pub retries: u64,
}

impl Sums {
    pub(super) fn of(counters: Counters) -> Sums {
        Sums {
            rpcs: counters.rpcs.into_iter().collect(),
            operations: counters.operations.into_iter().collect(),
            read_direct: counters.read_direct,
            read_short_circuit: counters.read_short_circuit,
            short_circuit_reads: counters.short_circuit_reads,
            read_via_mgr: counters.read_via_mgr,
            written_direct: counters.written_direct,
            written_via_mgr: counters.written_via_mgr,
            retries: counters.retries,
        }
    }

    fn with(mut self, other: &Sums, join: fn(u64, u64) -> u64) -> Sums {
        let maps = [(&mut self.rpcs, &other.rpcs), (&mut self.operations, &other.operations)];
        for (mine, theirs) in maps {
            for (name, count) in theirs {
                let sum = mine.entry(name.clone()).or_default();
                *sum = join(*sum, *count);
            }
            mine.retain(|_, count| *count > 0);
        }
        Sums {
            read_direct: join(self.read_direct, other.read_direct),
            read_short_circuit: join(self.read_short_circuit, other.read_short_circuit),
            short_circuit_reads: join(self.short_circuit_reads, other.short_circuit_reads),
            read_via_mgr: join(self.read_via_mgr, other.read_via_mgr),
            written_direct: join(self.written_direct, other.written_direct),
            written_via_mgr: join(self.written_via_mgr, other.written_via_mgr),
            retries: join(self.retries, other.retries),
            ..self
        }
    }
}

impl Add for Sums {
    type Output = Sums;

    fn add(self, other: Sums) -> Sums {
        self.with(&other, |a, b| a + b)
    }
}

impl Sub for Sums {
    type Output = Sums;

    fn sub(self, other: Sums) -> Sums {
        self.with(&other, u64::saturating_sub)
    }
}

impl std::iter::Sum for Sums {
    fn sum<I: Iterator<Item = Sums>>(all: I) -> Sums {
        all.fold(Sums::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtraction_gives_the_counts_since_an_earlier_time() {
        let counts = |read: u64, other: u64| Sums {
            rpcs: [("READ".to_owned(), read), ("WRITE".to_owned(), other)].into(),
            written_direct: read,
            ..Sums::default()
        };
        let since = [counts(5, 1), counts(7, 0)].into_iter().sum::<Sums>() - counts(4, 1);
        assert_eq!((since.rpcs, since.written_direct), ([("READ".to_owned(), 8)].into(), 8));
    }
}
