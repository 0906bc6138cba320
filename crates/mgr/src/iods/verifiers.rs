//! The write verifier of the mgr: changes whenever it or any iod may have lost unstable bytes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
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
    known: Mutex<BTreeMap<u16, Verifier>>,
}

impl Verifiers {
    /// No iod seen yet; `nonce` is random.
    pub(crate) fn new(nonce: u64) -> Self {
        Verifiers { nonce, known: Mutex::default() }
    }

    /// Takes the verifiers that iods answered with, and gives the one that the mgr answers with.
    pub(crate) fn combine(&self, seen: &[(u16, Verifier)]) -> Verifier {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(seen.iter().copied());
        let mut hash = DefaultHasher::new();
        self.nonce.hash(&mut hash);
        // An iod that answered twice with different verifiers must not pass for one that kept its bytes.
        seen.iter().filter(|(number, verifier)| known.get(number) != Some(verifier)).for_each(|s| s.hash(&mut hash));
        for entry in known.iter() {
            entry.hash(&mut hash);
        }
        Verifier(hash.finish().to_be_bytes())
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
        assert_ne!(Verifiers::new(8).combine(&[(1, A)]), Verifiers::new(7).combine(&[(1, A)]), "the mgr restarted");
    }
}
