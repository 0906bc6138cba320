//! The write verifier of the mgr: it changes whenever the mgr or any iod may have lost unstable writes (RFC 8881
//! §18.3).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::Verifier;

/// The last known write verifiers of the iods, and a nonce that differs between starts of the mgr.
///
/// A client compares the verifier of a COMMIT with the verifiers of the WRITEs before it. The verifier of each reply
/// combines the replies of the iods to this request with the last known verifiers of the other iods. So two verifiers
/// are equal only if no iod with bytes of either request has restarted between the two replies. If an iod without bytes
/// of these requests restarts, the verifiers may differ too. The client then needlessly sends its writes again.
#[derive(Debug)]
pub(crate) struct Verifiers {
    nonce: u64,
    /// How many times the mgr has discarded bytes of writes to which it had replied with success.
    losses: AtomicU64,
    known: Mutex<BTreeMap<u16, Known>>,
}

/// What the mgr knows of an iod: whether the iod may have lost unstable writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Known {
    /// The iod is up. It has lost no unstable writes as long as its replies contain this verifier.
    Here(Verifier),
    /// The iod is down. Its unstable writes may be lost, and the mgr cannot get a verifier from it.
    Away,
}

impl Verifiers {
    /// Creates an empty table of verifiers. `nonce` must be random.
    pub(crate) fn new(nonce: u64) -> Self {
        Verifiers { nonce, losses: AtomicU64::new(0), known: Mutex::default() }
    }

    /// Records the verifiers in the replies of iods to a request, and returns the mgr's verifier for the reply to the
    /// client.
    pub(crate) fn combine(&self, seen: &[(u16, Verifier)]) -> Verifier {
        let mut known = self.known();
        for (number, verifier) in seen {
            // If an iod has gone down, keep its state `Away`: the iod may have sent this reply before it went down.
            let entry = known.entry(*number).or_insert(Known::Here(*verifier));
            if *entry != Known::Away {
                *entry = Known::Here(*verifier);
            }
        }
        let mut hash = DefaultHasher::new();
        (self.nonce, self.losses.load(SeqCst)).hash(&mut hash);
        // Also hash each verifier of this request that differs from the recorded state of its iod. Otherwise an iod
        // that sent two different verifiers, or went down after its reply, would look like an iod that has lost no
        // bytes.
        let same = |(number, verifier): &&(u16, Verifier)| known.get(number) == Some(&Known::Here(*verifier));
        seen.iter().filter(|one| !same(one)).for_each(|s| s.hash(&mut hash));
        for entry in known.iter() {
            entry.hash(&mut hash);
        }
        Verifier(hash.finish().to_be_bytes())
    }

    /// Records that the mgr discards bytes that it had accepted, so that no later COMMIT appears to make these bytes
    /// durable.
    pub(crate) fn lost(&self) {
        self.losses.fetch_add(1, SeqCst);
    }

    /// Records that an iod has connected, with the write verifier `verifier`.
    pub(super) fn came(&self, number: u16, verifier: Verifier) {
        self.known().insert(number, Known::Here(verifier));
    }

    /// Records that an iod has gone down. A COMMIT that cannot reach this iod then returns a verifier different from
    /// that of a COMMIT that the iod executed.
    pub(super) fn left(&self, number: u16) {
        self.known().insert(number, Known::Away);
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u16, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Verifier = Verifier([1; 8]);
    const B: Verifier = Verifier([2; 8]);
    const C: Verifier = Verifier([3; 8]);

    #[test]
    fn verifiers_are_equal_only_while_no_iod_restarts() {
        let verifiers = Verifiers::new(7);
        verifiers.combine(&[(1, A), (2, B)]);
        let write = verifiers.combine(&[(1, A)]);
        assert_eq!(verifiers.combine(&[(2, B), (1, A)]), write, "the commit asks both");
        assert_ne!(verifiers.combine(&[(1, C), (2, B)]), write, "the first iod restarted");
        let write = verifiers.combine(&[(2, B)]);
        assert_eq!(verifiers.combine(&[(1, C), (2, B)]), write);
        let late = verifiers.combine(&[(1, A)]);
        assert_ne!(verifiers.combine(&[(1, C), (2, B)]), late, "a late reply from before the restart");
        assert_ne!(verifiers.combine(&[(1, C), (1, A)]), verifiers.combine(&[(1, A)]), "restarted within one write");
        let write = verifiers.combine(&[(1, A), (2, B)]);
        verifiers.left(1);
        let without = verifiers.combine(&[(2, B)]);
        assert_ne!(without, write, "the first iod was unreachable");
        assert_ne!(verifiers.combine(&[(1, A), (2, B)]), without, "a late reply from before the iod went down");
        assert_eq!(verifiers.combine(&[(2, B)]), without, "the late reply does not affect the second iod");
        verifiers.came(1, A);
        assert_eq!(verifiers.combine(&[(2, B), (1, A)]), write, "the first iod is back and has lost nothing");
        verifiers.lost();
        assert_ne!(verifiers.combine(&[(2, B), (1, A)]), write, "the mgr dropped bytes of the file");
        assert_ne!(Verifiers::new(8).combine(&[(1, A)]), Verifiers::new(7).combine(&[(1, A)]), "the mgr restarted");
    }
}
