//! Counters of an iod: atomics that all threads increment and the STATS procedure reports.

use std::sync::atomic::{AtomicU64, Ordering};

use types::Status;
use wire::native::{Counter, Procedure};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal),* $(,)?) => {
        /// All counters of an iod since its start.
        #[derive(Debug, Default)]
        pub struct Counters {
            requests: [AtomicU64; Procedure::ALL.len()],
            $($(#[$doc])* pub(crate) $field: AtomicU64),*
        }

        impl Counters {
            /// Returns all counters with their names, in a fixed order.
            pub fn snapshot(&self) -> Vec<Counter> {
                let requests = Procedure::ALL.iter().zip(&self.requests).map(|(procedure, value)| Counter {
                    name: format!("requests.{}", procedure.name().to_lowercase()),
                    value: value.load(Ordering::Relaxed),
                });
                let others = [$(($name, &self.$field)),*];
                let others = others.map(|(name, value)| Counter { name: name.into(), value: value.load(Ordering::Relaxed) });
                requests.chain(others).collect()
            }
        }
    };
}

counters! {
    /// Payload bytes of READ replies that were copied through memory.
    bytes_read = "bytes.read.copied",
    /// Payload bytes of READ replies that were sent by `sendfile`.
    bytes_sent_file = "bytes.read.sendfile",
    /// Payload bytes written.
    bytes_written = "bytes.written",
    /// Bytes copied from other iods by PULL.
    bytes_pulled = "bytes.pulled",
    /// Bytes copied from one object to another by PULL.
    bytes_copied = "bytes.copied",
    /// PULLs that ended early because the other iod could not be read.
    pulls_stopped = "pulls.stopped",
    /// PULLs refused because too many were running.
    pulls_refused = "pulls.refused",
    /// `fdatasync` calls on objects.
    syncs_object = "syncs.object",
    /// `fsync` calls on directories.
    syncs_directory = "syncs.directory",
    /// `fdatasync` calls on files of block checksums.
    syncs_sums = "syncs.sums",
    /// Requested syncs that an earlier or concurrent sync had already covered.
    syncs_shared = "syncs.shared",
    /// Syncs that failed.
    syncs_failed = "syncs.failed",
    /// Objects created.
    objects_created = "objects.created",
    /// Objects removed.
    objects_removed = "objects.removed",
    /// Object files that REMOVE left because their head is that of something else.
    objects_left = "objects.left",
    /// Descriptors of object files passed to clients of this machine, for short-circuit reads.
    objects_short_circuit = "objects.short_circuit",
    /// Object files opened.
    objects_opened = "objects.opened",
    /// Object files closed to keep the number of open files below its limit.
    objects_evicted = "objects.evicted",
    /// Blocks whose content does not match their checksum.
    sums_mismatched = "sums.mismatched",
    /// Blocks that had no checksum after a crash and got one from a scrub.
    sums_rebuilt = "sums.rebuilt",
    /// Bytes that scrubs have read.
    scrub_bytes = "scrub.bytes",
    /// Objects that scrubs have finished.
    scrub_objects = "scrub.objects",
    /// Findings of damage by scrubs.
    scrub_findings = "scrub.findings",
    /// Calls that look for data and holes (SEEK_DATA, SEEK_HOLE).
    seeks = "objects.hole_seeks",
    /// Capabilities and tickets refused because they were forged, belonged to another session, or lacked the right.
    refused_capability = "refused.capability",
    /// Capabilities and tickets refused because they had expired.
    refused_expired = "refused.expired",
    /// Capabilities refused because of an older generation (fenced).
    refused_fenced = "refused.fenced",
    /// Requests refused because they came before HELLO.
    refused_no_session = "refused.no_session",
    /// Payloads whose checksum did not match on arrival.
    checksum_failures = "checksum_failures",
    /// Requests that failed for other reasons.
    failures = "failures",
    /// Connections whose thread panicked.
    panics = "panics",
    /// Connections accepted.
    connections = "connections.accepted",
    /// Connections open now.
    connections_open = "connections.open",
    /// Connections refused because there were too many.
    connections_refused = "connections.refused",
    /// Connections closed because the peer took too long inside a request or reply.
    connections_stalled = "connections.stalled",
    /// Connections closed because the peer sent invalid data or stalled.
    connections_broken = "connections.broken",
}

impl Counters {
    /// Adds `n` to a counter.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts a request.
    pub(crate) fn request(&self, procedure: Procedure) {
        Self::add(&self.requests[procedure as usize], 1);
    }

    /// Counts a request that failed or was refused, under the counter of its status.
    pub(crate) fn failed(&self, status: Status) {
        let counter = match status {
            Status::CapRefused => &self.refused_capability,
            Status::CapExpired => &self.refused_expired,
            Status::Fenced => &self.refused_fenced,
            Status::NoSession => &self.refused_no_session,
            Status::BadChecksum => &self.checksum_failures,
            _ => &self.failures,
        };
        Self::add(counter, 1);
    }

    /// Returns the value of the counter with this name, or 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.snapshot().into_iter().find(|c| c.name == name).map_or(0, |c| c.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_refusal_has_its_counter() {
        let counters = Counters::default();
        let mut names: Vec<_> = counters.snapshot().into_iter().map(|c| c.name).collect();
        let len = names.len();
        assert!(len <= wire::native::COUNTERS_MAX);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), len);
        for (status, name) in [
            (Status::CapRefused, "refused.capability"),
            (Status::CapExpired, "refused.expired"),
            (Status::Fenced, "refused.fenced"),
            (Status::NoSession, "refused.no_session"),
            (Status::BadChecksum, "checksum_failures"),
            (Status::NoSpc, "failures"),
        ] {
            counters.failed(status);
            assert_eq!(counters.get(name), 1, "{name}");
        }
        counters.request(Procedure::Fence);
        assert_eq!(counters.get("requests.fence"), 1);
    }
}
