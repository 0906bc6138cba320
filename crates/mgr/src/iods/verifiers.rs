//! The write verifier of the mgr: changes whenever it or any iod may have lost unstable bytes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::Verifier;

/// The verifiers of the iods, as last seen, and what makes this start of the mgr different from all others.
///
/// A client compares the verifier of a COMMIT with those of the WRITEs before it. Each of these answers is made of what
/// the iods said in that very exchange, and of what is known of the others. So two answers are equal only if no iod
/// that kept bytes of either has restarted between them; that some other iod restarted may make them differ, and costs
/// no more than a needless resend.
#[derive(Debug)]
pub(crate) struct Verifiers {
    nonce: u64,
    /// How often bytes that the mgr had taken could not be written.
    losses: AtomicU64,
    known: Mutex<BTreeMap<u16, Known>>,
}

/// What is known of an iod.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Known {
    /// It is there, and keeps unstable bytes as long as it answers with this.
    Here(Verifier),
    /// It is away: what it kept may be lost, and nobody can ask.
    Away,
}

impl Verifiers {
    /// No iod seen yet; `nonce` is random.
    pub(crate) fn new(nonce: u64) -> Self {
        Verifiers { nonce, losses: AtomicU64::new(0), known: Mutex::default() }
    }

    /// Takes the verifiers that iods answered with, and gives the one that the mgr answers with.
    pub(crate) fn combine(&self, seen: &[(u16, Verifier)]) -> Verifier {
        let mut known = self.known();
        for (number, verifier) in seen {
            // What one answered before it went is no sign that it is back.
            let entry = known.entry(*number).or_insert(Known::Here(*verifier));
            if *entry != Known::Away {
                *entry = Known::Here(*verifier);
            }
        }
        let mut hash = DefaultHasher::new();
        (self.nonce, self.losses.load(SeqCst)).hash(&mut hash);
        // An iod that answered twice with different verifiers must not pass for one that kept its bytes, and neither must
        // one that has gone since.
        let same = |(number, verifier): &&(u16, Verifier)| known.get(number) == Some(&Known::Here(*verifier));
        seen.iter().filter(|one| !same(one)).for_each(|s| s.hash(&mut hash));
        for entry in known.iter() {
            entry.hash(&mut hash);
        }
        Verifier(hash.finish().to_be_bytes())
    }

    /// Bytes that were answered for are given up here: nobody's COMMIT may look like one that has them.
    pub(crate) fn lost(&self) {
        self.losses.fetch_add(1, SeqCst);
    }

    /// An iod has come up, and answers with this.
    pub(super) fn came(&self, number: u16, verifier: Verifier) {
        self.known().insert(number, Known::Here(verifier));
    }

    /// An iod has gone: no COMMIT that leaves it out may look like one that asked it.
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
    fn equal_only_while_nobody_restarted() {
        let verifiers = Verifiers::new(7);
        verifiers.combine(&[(1, A), (2, B)]);
        let write = verifiers.combine(&[(1, A)]);
        assert_eq!(verifiers.combine(&[(2, B), (1, A)]), write, "the commit asks both");
        assert_ne!(verifiers.combine(&[(1, C), (2, B)]), write, "the first restarted");
        let write = verifiers.combine(&[(2, B)]);
        assert_eq!(verifiers.combine(&[(1, C), (2, B)]), write);
        let late = verifiers.combine(&[(1, A)]);
        assert_ne!(verifiers.combine(&[(1, C), (2, B)]), late, "an answer from before the restart came late");
        assert_ne!(verifiers.combine(&[(1, C), (1, A)]), verifiers.combine(&[(1, A)]), "restarted within one write");
        let write = verifiers.combine(&[(1, A), (2, B)]);
        verifiers.left(1);
        let without = verifiers.combine(&[(2, B)]);
        assert_ne!(without, write, "nobody could ask the first");
        assert_ne!(verifiers.combine(&[(1, A), (2, B)]), without, "an answer from before it went came late");
        assert_eq!(verifiers.combine(&[(2, B)]), without, "which changes nothing for the second");
        verifiers.came(1, A);
        assert_eq!(verifiers.combine(&[(2, B), (1, A)]), write, "the first is back and has lost nothing");
        verifiers.lost();
        assert_ne!(verifiers.combine(&[(2, B), (1, A)]), write, "bytes were given up here");
        assert_ne!(Verifiers::new(8).combine(&[(1, A)]), Verifiers::new(7).combine(&[(1, A)]), "the mgr restarted");
    }
}
