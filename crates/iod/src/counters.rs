//! Counters of an iod: atomics that every thread bumps and STATS shows.

use std::sync::atomic::{AtomicU64, Ordering};

use types::Status;
use wire::native::{Counter, Procedure};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal),* $(,)?) => {
        /// Everything that an iod counts since it started.
        #[derive(Debug, Default)]
        pub struct Counters {
            requests: [AtomicU64; Procedure::ALL.len()],
            $($(#[$doc])* pub(crate) $field: AtomicU64),*
        }

        impl Counters {
            /// All counters with their names, in a fixed order.
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
    /// Payload bytes answered to READ through memory.
    bytes_read = "bytes.read.copied",
    /// Payload bytes answered to READ by `sendfile`.
    bytes_sent_file = "bytes.read.sendfile",
    /// Payload bytes written.
    bytes_written = "bytes.written",
    /// Bytes copied from other iods by PULL.
    bytes_pulled = "bytes.pulled",
    /// Bytes copied from one object to another by PULL.
    bytes_copied = "bytes.copied",
    /// PULLs that ended early, as the other iod could not be read.
    pulls_stopped = "pulls.stopped",
    /// PULLs turned away because there were enough.
    pulls_refused = "pulls.refused",
    /// `fdatasync` calls on objects.
    syncs_object = "syncs.object",
    /// `fsync` calls on directories.
    syncs_directory = "syncs.directory",
    /// `fdatasync` calls on files of block checksums.
    syncs_sums = "syncs.sums",
    /// Syncs asked for that an earlier or concurrent one had covered.
    syncs_shared = "syncs.shared",
    /// Syncs that failed.
    syncs_failed = "syncs.failed",
    /// Objects created.
    objects_created = "objects.created",
    /// Objects removed.
    objects_removed = "objects.removed",
    /// Descriptors of object files lent to clients of this machine.
    objects_lent = "objects.lent",
    /// Object files opened.
    objects_opened = "objects.opened",
    /// Object files closed to make room.
    objects_evicted = "objects.evicted",
    /// Blocks found that are not what was written.
    sums_mismatched = "sums.mismatched",
    /// Blocks that had no checksum, as a crash leaves them, and got one by a scrub.
    sums_rebuilt = "sums.rebuilt",
    /// Bytes that scrubs have read.
    scrub_bytes = "scrub.bytes",
    /// Objects that scrubs have finished.
    scrub_objects = "scrub.objects",
    /// Damage that scrubs have found.
    scrub_findings = "scrub.findings",
    /// Calls to find data and holes.
    seeks = "objects.hole_seeks",
    /// Capabilities and tickets that were forged, of another session, or without the right.
    refused_capability = "refused.capability",
    /// Capabilities and tickets that came too late.
    refused_expired = "refused.expired",
    /// Capabilities of an older generation.
    refused_fenced = "refused.fenced",
    /// Requests before HELLO.
    refused_no_session = "refused.no_session",
    /// Payloads that arrived damaged.
    checksum_failures = "checksum_failures",
    /// Requests that failed for other reasons.
    failures = "failures",
    /// Connections whose work ended in a panic.
    panics = "panics",
    /// Connections accepted.
    connections = "connections.accepted",
    /// Connections open now.
    connections_open = "connections.open",
    /// Connections turned away because there were too many.
    connections_refused = "connections.refused",
    /// Connections cut off because the peer took too long inside a request or reply.
    connections_stalled = "connections.stalled",
    /// Connections closed because of what the peer sent, or because it stalled.
    connections_broken = "connections.broken",
}

impl Counters {
    /// Adds to one.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts a request.
    pub(crate) fn request(&self, procedure: Procedure) {
        Self::add(&self.requests[procedure as usize], 1);
    }

    /// Counts a request that was not carried out.
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

    /// The value of the counter with this name, 0 when there is none.
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
