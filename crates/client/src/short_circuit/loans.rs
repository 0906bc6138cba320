//! All loans of a mount, each with an open file descriptor. The number of loans is limited, so that the process keeps
//! enough free descriptors.

use super::loan_state::{LoanReply, LoanState, ReadFrom};
use super::{Loan, LoanEnded};
use crate::drivers::native::ObjectRun;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use types::ByteRange;

/// Maximum number of loans of a mount.
const LOANS_MAX: u64 = 4096;

/// The loan state of one object of a layout.
#[derive(Default)]
pub(crate) struct ObjectLoan(Mutex<LoanState<Held>>);

/// A loan, and whether a read has used the loan since [`Loans::put`] last considered the loan for eviction.
#[derive(Clone)]
struct Held {
    loan: Arc<Loan>,
    used: Arc<AtomicBool>,
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        Arc::ptr_eq(&self.loan, &other.loan)
    }
}

/// The result of an attempt to read from a loan.
pub(crate) enum Read {
    /// The read from the loan succeeded, and returned these bytes.
    Done(Vec<ObjectRun>),
    /// The caller must send the read to the iod.
    Ask,
    /// The caller must send the read to the iod, and also request a loan ([`Loans::replied`]).
    AskAndBorrow,
}

/// The loans of a mount, in the order in which they are evicted.
pub(crate) struct Loans {
    most: usize,
    loans: Mutex<VecDeque<QueuedLoan>>,
}

/// A loan in the eviction queue, and the loan state of its object. The client may have dropped both together with the
/// layout of the object.
struct QueuedLoan {
    object: Weak<ObjectLoan>,
    loan: Weak<Loan>,
    used: Arc<AtomicBool>,
}

impl ObjectLoan {
    fn state(&self) -> MutexGuard<'_, LoanState<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads extents from the loan at time `now` (Unix seconds), if the object has a loan.
    pub(crate) fn read(&self, now: u64, extents: &[ByteRange]) -> Read {
        let turn = self.state().read();
        let held = match turn {
            ReadFrom::Loan(held) => held,
            ReadFrom::Iod => return Read::Ask,
            ReadFrom::IodAndAsk => return Read::AskAndBorrow,
        };
        held.used.store(true, Relaxed);
        match held.loan.read(now, extents) {
            Ok(Some(found)) => Read::Done(found),
            Ok(None) => Read::Ask,
            Err(LoanEnded) => {
                self.state().give_up(&held);
                Read::Ask
            }
        }
    }
}

impl Loans {
    /// Creates an empty set of loans. At most a quarter of the process's file descriptors may be loans.
    pub(crate) fn new() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Loans::of((files / 4).min(LOANS_MAX) as usize)
    }

    /// Creates an empty set of at most `most` loans.
    fn of(most: usize) -> Self {
        Loans { most: most.max(1), loans: Mutex::default() }
    }

    /// Records the reply to a request for the loan of an object. The client may have dropped the layout of the object
    /// before the reply arrived.
    pub(crate) fn replied(&self, object: &Weak<ObjectLoan>, reply: LoanReply<Loan>) {
        let Some(object_loan) = object.upgrade() else { return };
        let reply = match reply {
            LoanReply::Granted(loan) => {
                let held = Held { loan: Arc::new(loan), used: Arc::default() };
                let (loan, used) = (Arc::downgrade(&held.loan), held.used.clone());
                self.put(QueuedLoan { object: object.clone(), loan, used });
                LoanReply::Granted(held)
            }
            LoanReply::NotNow => LoanReply::NotNow,
            LoanReply::Never => LoanReply::Never,
        };
        object_loan.state().replied(reply);
    }

    /// Adds a loan to the eviction queue. If there are too many loans, evicts the oldest loan that no read used
    /// recently.
    fn put(&self, new: QueuedLoan) {
        let mut loans = self.loans.lock().unwrap_or_else(PoisonError::into_inner);
        if loans.len() >= self.most {
            // Remove from the queue the loans that have ended because the client gave them up or dropped their layouts.
            loans.retain(|queued| queued.loan.strong_count() > 0);
        }
        let mut looks = loans.len();
        while loans.len() >= self.most
            && let Some(oldest) = loans.pop_front()
        {
            if looks > 0 && oldest.used.swap(false, Relaxed) {
                looks -= 1;
                loans.push_back(oldest);
            } else if let (Some(object), Some(loan)) = (oldest.object.upgrade(), oldest.loan.upgrade()) {
                object.state().give_up(&Held { loan, used: oldest.used });
            }
        }
        loans.push_back(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::io::Write;

    fn loan() -> Loan {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"mark and bytes").unwrap();
        let loan = wire::native::Loan { begin: 9, mark: Bytes::from_static(b"mark") };
        let loan = Loan::new(file.reopen().unwrap().into(), loan, u64::MAX, || true).unwrap();
        FILES.with_borrow_mut(|files| files.push(file));
        loan
    }

    thread_local! {
        /// Holds the temporary files of all loans, so that no file is removed before the test ends.
        static FILES: std::cell::RefCell<Vec<tempfile::NamedTempFile>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    fn reads(object: &ObjectLoan) -> bool {
        let read = object.read(0, &[ByteRange { offset: 0, len: 3 }]);
        matches!(read, Read::Done(found) if found == [ObjectRun::Data(Bytes::from_static(b"byt"))])
    }

    /// Creates an object, and reads it until a read requests a loan, which is then granted.
    fn borrowed(loans: &Loans) -> Arc<ObjectLoan> {
        let object = Arc::new(ObjectLoan::default());
        while !matches!(object.read(0, &[]), Read::AskAndBorrow) {}
        loans.replied(&Arc::downgrade(&object), LoanReply::Granted(loan()));
        object
    }

    fn held(object: &ObjectLoan) -> bool {
        matches!(&*object.state(), LoanState::Lent(_))
    }

    #[test]
    fn beyond_the_limit_the_least_recently_used_loan_ends() {
        let loans = Loans::of(8);
        let mut loan_states = Vec::new();
        for n in 0..50 {
            loan_states.push(borrowed(&loans));
            let lent: Vec<usize> = (0..loan_states.len()).filter(|n| held(&loan_states[*n])).collect();
            assert_eq!(lent, (loan_states.len().saturating_sub(8)..=n).collect::<Vec<_>>());
        }
        assert!(loan_states[42..].iter().all(|object| reads(object)));
        // When the mount has the maximum number of loans, a new loan evicts an unused loan, but not a loan that reads
        // keep using.
        let favourite = borrowed(&loans);
        for _ in 0..100 {
            assert!(reads(&favourite));
            borrowed(&loans);
        }
        let strong =
            |loans: &Loans| loans.loans.lock().unwrap().iter().filter(|one| one.loan.strong_count() > 0).count();
        assert!(held(&favourite) && strong(&loans) <= 8);
    }

    #[test]
    fn a_dropped_place_ends_its_loan() {
        let loans = Loans::of(8);
        let object = borrowed(&loans);
        let loan = loans.loans.lock().unwrap()[0].loan.clone();
        assert_eq!(loan.strong_count(), 1);
        drop(object);
        assert_eq!(loan.strong_count(), 0, "the descriptor of the loan is still open");
        // If the client has dropped the layout of an object before the reply to the request for a loan arrives, the
        // client closes the lent file at once.
        let gone = Arc::downgrade(&Arc::new(ObjectLoan::default()));
        loans.replied(&gone, LoanReply::Granted(self::loan()));
        assert_eq!(loans.loans.lock().unwrap().len(), 1);
    }

    #[test]
    fn the_limit_holds_when_all_loans_are_in_use() {
        let loans = Loans::of(4);
        let loan_states: Vec<_> = (0..4).map(|_| borrowed(&loans)).collect();
        assert!(loan_states.iter().all(|object| reads(object)));
        let fifth = borrowed(&loans);
        assert!(held(&fifth) && !held(&loan_states[0]) && loan_states[1..].iter().all(|object| held(object)));
    }
}
