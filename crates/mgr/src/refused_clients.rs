//! Log messages about clients that the mgr refuses because of their NFS version or their source port. At the client,
//! the user sees only that the mount failed.

use net::Address;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use wire::nfs4::compound::ArgsHeader;
use xdr::{Reader, Xdr};

/// Shortest time between two log messages for the same reason. Automounters retry forever, and an attacker could fill
/// the disk with messages.
const AGAIN: Duration = Duration::from_secs(10);

/// Why the mgr refuses a request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RefusedRequest {
    /// The request has NFS version 2 or 3, or a version that does not exist. The mgr replies with PROG_MISMATCH (RFC
    /// 5531 §9).
    Version(u32),
    /// The request has a minor version of NFSv4 that the mgr does not support. The mgr replies with
    /// NFS4ERR_MINOR_VERS_MISMATCH (RFC 8881 §16.2).
    Minor(u32),
    /// The request comes from a source port above 1023 of another host, and the export requires a privileged port
    /// (`privileged_ports`).
    Port,
}

/// For each of the three reasons to refuse a request: when the mgr last logged a refusal for this reason.
#[derive(Debug, Default)]
pub(crate) struct RefusedClients([Mutex<Option<Instant>>; 3]);

impl RefusedRequest {
    /// Returns the minor version of a COMPOUND request if the mgr does not support this version.
    pub(crate) fn by(mut compound: Reader) -> Option<RefusedRequest> {
        let minor = ArgsHeader::decode(&mut compound).ok()?.minorversion;
        (!matches!(minor, 1 | 2)).then_some(RefusedRequest::Minor(minor))
    }
}

impl RefusedClients {
    /// Logs that the mgr refused a request from `peer`, unless it has logged a refusal for the same reason within the
    /// last ten seconds.
    pub(crate) fn log(&self, request: RefusedRequest, peer: &Address, now: Instant) {
        if !self.is_due(request, now) {
            return;
        }
        let wanted = match request {
            RefusedRequest::Version(version) => version.to_string(),
            RefusedRequest::Minor(minor) => format!("4.{minor}"),
            RefusedRequest::Port => {
                return tracing::warn!(
                    %peer,
                    "refused a client that does not use a port below 1024: mount as root and without \"noresvport\", or set \"privileged_ports = \
                     false\" for the export, which lets every account of that machine claim to be any user"
                );
            }
        };
        tracing::warn!(%peer, "refused a client that asks for NFS {wanted}: the mgr serves 4.1 and 4.2; mount with vers=4.1 or vers=4.2");
    }

    fn is_due(&self, request: RefusedRequest, now: Instant) -> bool {
        let [versions, minors, ports] = &self.0;
        let last = match request {
            RefusedRequest::Version(_) => versions,
            RefusedRequest::Minor(_) => minors,
            RefusedRequest::Port => ports,
        };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.duration_since(last) >= AGAIN);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_refusal_is_logged_once_and_again_after_a_time() {
        let (mismatches, start) = (RefusedClients::default(), Instant::now());
        let mut at = [
            (0, RefusedRequest::Minor(0)),
            (0, RefusedRequest::Version(3)),
            (1, RefusedRequest::Minor(0)),
            (10, RefusedRequest::Minor(7)),
        ]
        .map(|(secs, request)| mismatches.is_due(request, start + Duration::from_secs(secs)))
        .to_vec();
        at.push(mismatches.is_due(RefusedRequest::Version(2), start + Duration::from_secs(9)));
        assert_eq!(at, [true, true, false, true, false]);
    }

    #[test]
    fn only_unsupported_minor_versions_are_logged() {
        let of = |minor| {
            let header = ArgsHeader { tag: Bytes::new(), minorversion: minor, numops: 1 };
            RefusedRequest::by(Reader::new(header.to_bytes()))
        };
        assert_eq!([0, 1, 2, 3].map(of), [Some(RefusedRequest::Minor(0)), None, None, Some(RefusedRequest::Minor(3))]);
        assert_eq!(RefusedRequest::by(Reader::new(Bytes::from_static(b"no"))), None);
    }
}
