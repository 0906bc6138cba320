//! Log messages about clients that are refused for their NFS version or their port: the client itself sees only a
//! failed mount.

use net::Address;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use wire::nfs4::compound::ArgsHeader;
use xdr::{Reader, Xdr};

/// Least time between two messages of a kind: automounters retry forever, and an attacker could fill the disk.
const AGAIN: Duration = Duration::from_secs(10);

/// A request that is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Version 2 or 3, or one that does not exist (RFC 5531 §9: PROG_MISMATCH).
    Version(u32),
    /// A minor version of version 4 (RFC 8881 §16.2: NFS4ERR_MINOR_VERS_MISMATCH).
    Minor(u32),
    /// A request from a port above 1023 of another host (`privileged_ports`).
    Port,
}

/// When versions, minor versions, and ports were last logged.
#[derive(Debug, Default)]
pub(crate) struct RefusedClients([Mutex<Option<Instant>>; 3]);

impl Asked {
    /// Returns the minor version of a COMPOUND, if it is not supported.
    pub(crate) fn by(mut compound: Reader) -> Option<Asked> {
        let minor = ArgsHeader::decode(&mut compound).ok()?.minorversion;
        (!matches!(minor, 1 | 2)).then_some(Asked::Minor(minor))
    }
}

impl RefusedClients {
    /// Logs this refusal, unless one of the same kind was logged a moment ago.
    pub(crate) fn say(&self, asked: Asked, peer: &Address, now: Instant) {
        if !self.is_time(asked, now) {
            return;
        }
        let wanted = match asked {
            Asked::Version(version) => version.to_string(),
            Asked::Minor(minor) => format!("4.{minor}"),
            Asked::Port => {
                return tracing::warn!(
                    %peer,
                    "refused a client that does not use a port below 1024: mount as root and without \"noresvport\", or set \"privileged_ports = \
                     false\" for the export, which lets every account of that machine claim to be any user"
                );
            }
        };
        tracing::warn!(%peer, "refused a client that asks for NFS {wanted}: the mgr serves 4.1 and 4.2; mount with vers=4.1 or vers=4.2");
    }

    fn is_time(&self, asked: Asked, now: Instant) -> bool {
        let [versions, minors, ports] = &self.0;
        let last = match asked {
            Asked::Version(_) => versions,
            Asked::Minor(_) => minors,
            Asked::Port => ports,
        };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = last.is_none_or(|last| now.duration_since(last) >= AGAIN);
        if is_time {
            *last = Some(now);
        }
        is_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_refusal_is_logged_once_and_again_after_a_time() {
        let (mismatches, start) = (RefusedClients::default(), Instant::now());
        let mut at = [(0, Asked::Minor(0)), (0, Asked::Version(3)), (1, Asked::Minor(0)), (10, Asked::Minor(7))]
            .map(|(secs, asked)| mismatches.is_time(asked, start + Duration::from_secs(secs)))
            .to_vec();
        at.push(mismatches.is_time(Asked::Version(2), start + Duration::from_secs(9)));
        assert_eq!(at, [true, true, false, true, false]);
    }

    #[test]
    fn only_unsupported_minor_versions_are_logged() {
        let of = |minor| {
            let header = ArgsHeader { tag: Bytes::new(), minorversion: minor, numops: 1 };
            Asked::by(Reader::new(header.to_bytes()))
        };
        assert_eq!([0, 1, 2, 3].map(of), [Some(Asked::Minor(0)), None, None, Some(Asked::Minor(3))]);
        assert_eq!(Asked::by(Reader::new(Bytes::from_static(b"no"))), None);
    }
}
