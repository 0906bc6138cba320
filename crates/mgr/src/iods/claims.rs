//! Claims: each claim binds an iod to one metadata store, so that neither another store nor an older copy of this store
//! can use the iod.
//!
//! A claim contains a mark, a random number. The mgr makes a new mark at each start, after each dump, and periodically
//! while files change. The mgr records each mark in the store before any iod gets it. If the store does not have the
//! mark of an iod, another store or a later state of this store has used the iod, and the mgr refuses the iod.

use super::sent_marks::ClaimLocks;
use meta::{Embedded, Namespace};
use std::sync::Arc;
use tokio::sync::Mutex;
use types::{Status, StoreId, Timestamp};
use wire::native::{Claim, ClaimReply};
use xdr::{Malformed, Reader, Writer, Xdr};

const PREFIX: &[u8] = b"mgr/mark/";
/// Number of unallocated inode numbers that a claim covers: far more than the store allocates between two checks for a
/// new mark.
const AHEAD: u64 = 1 << 24;
/// When the store has more marks than this number, the mgr removes the oldest marks and keeps the newest [`MARKS_KEPT`]
/// marks.
const MARKS_MAX: usize = 512;
const MARKS_KEPT: usize = 256;
/// Largest number of marks that one read of the registry returns.
const MARKS_READ: usize = 1 << 16;

/// Why the mgr must not use an iod with this metadata store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Another metadata store uses the iod.
    #[error(
        "it is used by the metadata store {found}, and this one is {own}; nothing was changed: start the mgr on the store that \
         uses these iods, or name other iods in its configuration"
    )]
    Foreign {
        /// Identity of the metadata store that the iod has recorded as its user.
        found: StoreId,
        /// Identity of the metadata store of this mgr.
        own: StoreId,
    },
    /// A later state of the metadata store has used the iod.
    #[error(
        "this metadata store is an older copy: a later state of it (epoch {epoch}) has used the iod; nothing was changed: start \
         the mgr on the newest state, or, if that is lost, start it once with --recover-old-store"
    )]
    Old {
        /// The epoch (number of a start of the mgr) in the claim of the iod. A later state of this store has had this
        /// epoch.
        epoch: u32,
    },
    /// The iod has no claim, and has objects with inode numbers that this store has not allocated.
    #[error(
        "it has object {highest}, but this metadata store has only allocated object numbers below {next}: the store is an older copy or \
         not the one of this iod; nothing was changed: start the mgr on the store that made these objects, or, if only this copy \
         of it is left, start it once with --recover-old-store"
    )]
    Above {
        /// The highest inode number among the objects of the iod.
        highest: u64,
        /// The lowest inode number that the store has not allocated.
        next: u64,
    },
}

/// Decides from the claim in the reply of an iod whether a store may use the iod. `next` is the lowest unallocated
/// inode number of the store. `knows` returns whether the store has recorded a mark.
pub(super) fn judge(
    own: StoreId,
    next: u64,
    answer: &ClaimReply,
    knows: impl FnOnce(u64) -> Result<bool, Status>,
) -> Result<Result<(), Refusal>, Status> {
    Ok(match (&answer.remembered, answer.highest) {
        (Some(claim), _) if claim.store != own => Err(Refusal::Foreign { found: claim.store, own }),
        (Some(claim), _) => match knows(claim.mark)? {
            true => Ok(()),
            false => Err(Refusal::Old { epoch: claim.epoch }),
        },
        (None, Some(highest)) if highest < next => Ok(()),
        (None, Some(highest)) => Err(Refusal::Above { highest, next }),
        // An iod without a claim must report the highest inode number among its objects. Otherwise the mgr cannot
        // detect that its store is an older copy.
        (None, None) => return Err(Status::Io),
    })
}

/// The registry record of a mark: the epoch (number of a start of the mgr) and the time at which the mgr made the mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mark {
    epoch: u32,
    /// When the mgr made the mark, in Unix seconds.
    left: u64,
}

impl Xdr for Mark {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.epoch);
        out.u64(self.left);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Mark { epoch: input.u32()?, left: input.u64()? })
    }
}

fn mark_key(mark: u64) -> Vec<u8> {
    [PREFIX, &mark.to_be_bytes()].concat()
}

/// The claims that this start of the mgr has made.
#[derive(Debug)]
pub(super) struct Claims {
    pub(super) namespace: Arc<Namespace<Embedded>>,
    pub(super) store: StoreId,
    epoch: u32,
    /// The newest claim of this start of the mgr; `None` if this start has made no claim yet.
    current: Mutex<Option<Claim>>,
    /// Locks by which only one task at a time claims an iod.
    pub(super) locks: ClaimLocks,
}

impl Claims {
    pub(super) fn new(namespace: Arc<Namespace<Embedded>>, store: StoreId, epoch: u32) -> Self {
        Claims { namespace, store, epoch, current: Mutex::new(None), locks: ClaimLocks::default() }
    }

    /// Returns the lowest inode number that the store has not allocated.
    pub(super) fn next(&self) -> Result<u64, Status> {
        self.namespace.next_id().map(|next| next.0)
    }

    /// Decides from the claim in the reply of an iod whether this store may use the iod.
    pub(super) fn judge(&self, answer: &ClaimReply) -> Result<Result<(), Refusal>, Status> {
        judge(self.store, self.next()?, answer, |mark| self.knows(mark))
    }

    pub(super) fn knows(&self, mark: u64) -> Result<bool, Status> {
        Ok(self.namespace.registry(&mark_key(mark))?.is_some())
    }

    /// Records a mark durably in this store, so that the store may use iods with this mark.
    pub(super) async fn adopt(&self, mark: u64, epoch: u32) -> Result<(), Status> {
        let now = net::clock::now();
        let record = Mark { epoch, left: Timestamp::from(now).secs.max(0) as u64 };
        self.namespace.registry_put(now.into(), &mark_key(mark), Some(&record.to_bytes())).await
    }

    async fn make(&self) -> Result<Claim, Status> {
        let mark = getrandom::u64().map_err(|_| Status::ServerFault)?.max(1);
        // Record the mark before any iod gets it. A store that does not have the mark of its own iod counts as an older
        // copy.
        self.adopt(mark, self.epoch).await?;
        let numbers = self.next()?.checked_add(AHEAD).ok_or(Status::Corrupt)?;
        Ok(Claim { store: self.store, epoch: self.epoch, mark, numbers })
    }

    /// Returns the newest claim of this start of the mgr. Makes the first claim of this start if there is none.
    pub(super) async fn current(&self) -> Result<Claim, Status> {
        let mut current = self.current.lock().await;
        match *current {
            Some(claim) => Ok(claim),
            None => Ok(*current.insert(self.make().await?)),
        }
    }

    /// Makes a claim with a new mark. Later calls of [`Self::current`] return this claim.
    pub(super) async fn renew(&self) -> Result<Claim, Status> {
        let mut current = self.current.lock().await;
        Ok(*current.insert(self.make().await?))
    }

    /// Returns whether the mgr must make a new claim, because the store has allocated most of the inode numbers that
    /// the current claim covers.
    pub(super) async fn is_short_of_numbers(&self) -> Result<bool, Status> {
        let next = self.next()?;
        Ok(self.current.lock().await.is_some_and(|claim| next.saturating_add(AHEAD / 2) > claim.numbers))
    }

    /// Removes the oldest marks from the store if the store has many. The caller knows that every iod has the newest
    /// mark, so no iod needs an older one.
    pub(super) async fn forget_oldest(&self) -> Result<(), Status> {
        let marks = self.namespace.registry_list(PREFIX, MARKS_READ)?;
        if marks.len() <= MARKS_MAX {
            return Ok(());
        }
        // A mark record that cannot be decoded counts as the oldest, so that it is removed first.
        let left = |value| Mark::from_bytes(value).map_or(0, |mark| mark.left);
        let mut marks: Vec<_> = marks.iter().map(|(key, value)| (left(value), key)).collect();
        marks.sort_unstable();
        let newest = self.current.lock().await.map(|claim| mark_key(claim.mark));
        for (_, key) in &marks[..marks.len() - MARKS_KEPT] {
            if newest.as_deref() != Some(&key[..]) {
                self.namespace.registry_put(net::clock::now().into(), key, None).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: StoreId = StoreId([1; 16]);

    fn answer(store: StoreId, mark: u64) -> ClaimReply {
        let claim = Claim { store, epoch: 4, mark, numbers: 100 };
        ClaimReply { taken: false, remembered: Some(claim), highest: None }
    }

    #[test]
    fn only_a_store_that_knows_the_mark_of_an_iod_uses_it() {
        let judged = |answer: &ClaimReply| judge(OWN, 50, answer, |mark| Ok(mark == 7)).unwrap();
        assert_eq!(judged(&answer(OWN, 7)), Ok(()));
        assert_eq!(judged(&answer(OWN, 8)), Err(Refusal::Old { epoch: 4 }));
        let found = StoreId([2; 16]);
        assert_eq!(judged(&answer(found, 7)), Err(Refusal::Foreign { found, own: OWN }));
    }

    #[test]
    fn a_store_with_numbers_above_all_objects_uses_an_iod_without_a_mark() {
        let judged = |highest| judge(OWN, 50, &ClaimReply { highest, ..ClaimReply::default() }, |_| Ok(false));
        assert_eq!(judged(Some(0)), Ok(Ok(())));
        assert_eq!(judged(Some(49)), Ok(Ok(())));
        assert_eq!(judged(Some(50)), Ok(Err(Refusal::Above { highest: 50, next: 50 })));
        assert_eq!(judged(None), Err(Status::Io));
    }

    #[test]
    fn every_refusal_says_that_nothing_was_changed_and_what_to_do_next() {
        let refusals = [
            Refusal::Foreign { found: StoreId([2; 16]), own: OWN },
            Refusal::Old { epoch: 4 },
            Refusal::Above { highest: 7, next: 5 },
        ];
        for text in refusals.map(|refusal| refusal.to_string()) {
            let (_, next) = text.split_once("; ").expect("what to do");
            assert!(next.starts_with("nothing was changed: start"), "{text}");
        }
    }

    #[test]
    fn a_mark_has_its_golden_bytes() {
        let mark = Mark { epoch: 258, left: 3 };
        assert_eq!(mark.to_bytes(), &[0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3][..]);
        assert_eq!(Mark::from_bytes(&mark.to_bytes()), Ok(mark));
    }
}
