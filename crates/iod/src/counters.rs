//! Counters of an iod: atomics that the iod's threads increment and the STATS procedure returns.

use std::sync::atomic::{AtomicU64, Ordering};

use types::Status;
use wire::native::{Counter, Procedure};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal),* $(,)?) => {
        /// All counters of an iod, counted since the iod started.
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
    /// Payload bytes of READ replies that the iod copied through memory.
    bytes_read = "bytes.read.copied",
    /// Payload bytes of READ replies that were sent by `sendfile`.
    bytes_sent_file = "bytes.read.sendfile",
    /// Payload bytes that WRITE requests wrote to objects.
    bytes_written = "bytes.written",
    /// Bytes that PULL copied from objects of other iods.
    bytes_pulled = "bytes.pulled",
    /// Bytes that PULL copied from one object of this iod to another.
    bytes_copied = "bytes.copied",
    /// PULLs that ended early because this iod could not read from the source iod.
    pulls_stopped = "pulls.stopped",
    /// PULLs that the iod refused because it was already executing the largest allowed number of PULLs.
    pulls_refused = "pulls.refused",
    /// `fdatasync` calls on object files.
    syncs_object = "syncs.object",
    /// `fsync` calls on directories of the store.
    syncs_directory = "syncs.directory",
    /// `fdatasync` calls on checksum files, which hold the block checksums of objects.
    syncs_sums = "syncs.sums",
    /// Syncs that requests did not need to make, because an earlier or concurrent sync had already made their changes
    /// durable.
    syncs_shared = "syncs.shared",
    /// `fdatasync` and `fsync` calls that failed.
    syncs_failed = "syncs.failed",
    /// Objects that the iod created.
    objects_created = "objects.created",
    /// Objects that the iod removed.
    objects_removed = "objects.removed",
    /// Object files that REMOVE did not delete, because the header of the file names another object or another file
    /// system.
    objects_left = "objects.left",
    /// Descriptors of object files passed to clients of this machine, for short-circuit reads.
    objects_short_circuit = "objects.short_circuit",
    /// Object files that the iod opened.
    objects_opened = "objects.opened",
    /// Object files that the iod closed to keep the number of open files below its limit.
    objects_evicted = "objects.evicted",
    /// REGISTER requests that the index of a log file has accepted.
    index_registrations = "index.registrations",
    /// Records that the iod has written to the indexes of log files.
    index_records = "index.records",
    /// Checkpoints of indexes of log files.
    index_checkpoints = "index.checkpoints",
    /// Indexes of log files that the iod has read from the disk.
    index_loads = "index.loads",
    /// Indexes of log files that the iod has dropped from memory to bound its memory.
    index_dropped = "index.dropped",
    /// Blocks of objects whose content did not match their checksum.
    sums_mismatched = "sums.mismatched",
    /// Blocks that had no checksum after a crash and got one from a scrub.
    sums_rebuilt = "sums.rebuilt",
    /// Bytes that scrubs have read.
    scrub_bytes = "scrub.bytes",
    /// Objects that scrubs have checked completely.
    scrub_objects = "scrub.objects",
    /// Damaged ranges and objects that scrubs have found.
    scrub_findings = "scrub.findings",
    /// `lseek` calls on object files that look for data or holes (SEEK_DATA, SEEK_HOLE).
    seeks = "objects.hole_seeks",
    /// Capabilities and tickets that the iod refused because they were forged, belonged to another session, or lacked
    /// the right.
    refused_capability = "refused.capability",
    /// Capabilities and tickets that the iod refused because they had expired.
    refused_expired = "refused.expired",
    /// Capabilities that the iod refused because a FENCE of the object had made their generation invalid.
    refused_fenced = "refused.fenced",
    /// Requests that the iod refused because they arrived on a connection without a session.
    refused_no_session = "refused.no_session",
    /// Payloads that the iod refused because their checksum did not match.
    checksum_failures = "checksum_failures",
    /// Requests that failed for a reason that has no counter of its own.
    failures = "failures",
    /// Connections whose thread panicked.
    panics = "panics",
    /// Connections that the iod accepted.
    connections = "connections.accepted",
    /// Connections open now.
    connections_open = "connections.open",
    /// Connections that the iod refused because too many were open.
    connections_refused = "connections.refused",
    /// Connections that the iod closed because the peer took too long inside a request or reply.
    connections_stalled = "connections.stalled",
    /// Connections that the iod closed because the peer sent invalid data or stalled.
    connections_broken = "connections.broken",
}

impl Counters {
    /// Adds `n` to a counter.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Increments the counter of requests of this procedure.
    pub(crate) fn request(&self, procedure: Procedure) {
        Self::add(&self.requests[procedure as usize], 1);
    }

    /// Increments the counter for the status with which a request failed.
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

    /// Returns the value of the counter called `name`, or 0 if no counter has the name.
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
