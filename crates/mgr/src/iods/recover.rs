//! Recovery of an older copy of the metadata store (`weir mgr --recover-old-store`): the mgr raises the epoch and the
//! next inode number of the store above all values that the iods have recorded.
//!
//! The recovered store allocates no inode number that a later state may have allocated. If the file of an object does
//! not exist, but may exist in a later state, the mgr keeps the object. `weir fsck` lists the kept objects.

use super::Iods;
use super::claims::{Refusal, judge};
use super::link::Link;
use crate::error::Error;
use crate::store;
use net::Address;
use std::collections::BTreeMap;
use types::{FileId, IodId, StoreId};
use wire::native::ClaimReply;

/// What the mgr must take over into the recovered store from the claims and objects of its iods.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    /// The lowest inode number that the mgr may allocate next: the lost newer state of the store has not allocated this
    /// number or a higher one.
    first: u64,
    /// The largest epoch (number of a start of the mgr) in the claims of the iods.
    epoch: u32,
    /// The marks (random numbers in claims) of later states of the store, each with its epoch.
    marks: Vec<(u64, u32)>,
}

/// Computes from the replies of the iods which inode number, epoch and marks the mgr must take over into the store.
/// Returns `None` if the store is not older than the state that the iods have recorded.
fn plan(
    own: StoreId,
    (next, epoch): (u64, u32),
    answers: &[(&Address, ClaimReply)],
    mut knows: impl FnMut(u64) -> Result<bool, types::Status>,
) -> Result<Option<Plan>, Error> {
    let mut plan = Plan { first: next, epoch, marks: Vec::new() };
    let mut is_old = false;
    for (address, answer) in answers {
        let highest = answer.highest.unwrap_or(0);
        is_old |= highest >= next;
        plan.first = plan.first.max(highest.saturating_add(1));
        let judged = judge(own, next, answer, &mut knows).map_err(Error::Metadata)?;
        match judged {
            Err(refusal @ Refusal::Foreign { .. }) => {
                return Err(Error::IodRefused { address: address.to_string(), refusal });
            }
            Err(Refusal::Old { .. }) => is_old = true,
            Err(Refusal::Above { .. }) | Ok(()) => {}
        }
        if let Some(claim) = &answer.remembered {
            plan.first = plan.first.max(claim.numbers);
            plan.epoch = plan.epoch.max(claim.epoch);
            plan.marks.push((claim.mark, claim.epoch));
        }
    }
    Ok(is_old.then_some(plan))
}

impl Iods {
    /// Makes an older copy of the store usable with its iods. All registered iods must reply.
    pub(crate) async fn recover_old_store(&self, epoch: u32) -> Result<(), Error> {
        let mut answers = Vec::new();
        let mut seen: BTreeMap<IodId, &Address> = BTreeMap::new();
        for slot in &self.slots {
            let (iod, answer) = self
                .look_at(&slot.address)
                .await
                .map_err(|reason| Error::RecoverUnreached { iod: slot.address.to_string(), reason })?;
            seen.insert(iod, &slot.address);
            answers.push((&slot.address, answer));
        }
        if let Some(missing) = self.all().into_iter().find(|iod| !seen.contains_key(&iod.id)) {
            let place = missing.tcp.first().map_or_else(String::new, |address| format!(", last reached at {address}"));
            let reason = "it holds data, but is not in the configuration of the mgr".to_owned();
            return Err(Error::RecoverUnreached { iod: format!("{}{place}", missing.id), reason });
        }
        let next = self.claims.next().map_err(Error::Metadata)?;
        let Some(plan) = plan(self.claims.store, (next, epoch), &answers, |mark| self.claims.knows(mark))? else {
            tracing::info!(
                "--recover-old-store: the metadata store is not older than what the iods know; nothing was changed"
            );
            return Ok(());
        };
        for iod in seen.keys() {
            self.claims.forget_sent_marks(*iod).await.map_err(Error::Metadata)?;
        }
        self.take_over(&plan).await.map_err(Error::Metadata)?;
        tracing::warn!(
            first = plan.first,
            epoch = plan.epoch,
            "recovered from an older copy of the metadata store; run weir fsck: it lists objects of files that the copy does not know as object-unknown, and keeps them"
        );
        Ok(())
    }

    /// Connects to one iod, and requests its identity, its claim and the highest inode number among its objects.
    async fn look_at(&self, address: &Address) -> Result<(IodId, ClaimReply), String> {
        let (cluster, incarnation) = (self.cluster(), self.next_incarnation());
        let link = Link::connect(address, cluster.fsid, &cluster.key, incarnation, &self.counters).await;
        let link = link.map_err(|e| e.to_string())?;
        Ok((link.hello.iod, self.remembered(&link).await?))
    }

    /// Stores the values of the recovery plan in the metadata store. Records the marks last: while the store lacks one
    /// of these marks, the iods still detect the store as an older copy.
    async fn take_over(&self, plan: &Plan) -> Result<(), types::Status> {
        let first = FileId(plan.first);
        store::keep_unknown_below(&self.namespace, first).await?;
        self.namespace.skip_numbers(net::clock::now().into(), first).await?;
        store::raise_epoch(&self.namespace, plan.epoch).await?;
        for (mark, epoch) in &plan.marks {
            self.claims.adopt(*mark, *epoch).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::native::Claim;

    const OWN: StoreId = StoreId([1; 16]);

    fn answer(store: StoreId, mark: u64, numbers: u64, highest: u64) -> ClaimReply {
        let claim = Claim { store, epoch: 9, mark, numbers };
        ClaimReply { taken: false, remembered: Some(claim), highest: Some(highest) }
    }

    fn planned(answers: &[ClaimReply]) -> Result<Option<Plan>, Error> {
        let address = "h:1".parse().unwrap();
        let answers: Vec<_> = answers.iter().map(|answer| (&address, *answer)).collect();
        plan(OWN, (100, 3), &answers, |mark| Ok(mark == 7))
    }

    #[test]
    fn a_store_that_knows_all_marks_needs_no_recovery() {
        assert_eq!(planned(&[answer(OWN, 7, 500, 99)]).unwrap(), None);
        let fresh = ClaimReply { highest: Some(0), ..ClaimReply::default() };
        assert_eq!(planned(&[fresh]).unwrap(), None);
    }

    #[test]
    fn a_recovered_copy_continues_above_all_numbers_and_epochs_and_learns_all_marks() {
        let taken = planned(&[answer(OWN, 7, 500, 99), answer(OWN, 8, 400, 600)]).unwrap();
        assert_eq!(taken, Some(Plan { first: 601, epoch: 9, marks: vec![(7, 9), (8, 9)] }));
        let unclaimed = ClaimReply { highest: Some(100), ..ClaimReply::default() };
        assert_eq!(planned(&[unclaimed]).unwrap(), Some(Plan { first: 101, epoch: 3, marks: vec![] }));
    }

    #[test]
    fn recovery_refuses_iods_of_another_store() {
        let error = planned(&[answer(StoreId([2; 16]), 7, 500, 99)]).unwrap_err().to_string();
        assert!(error.contains("h:1") && error.contains("01010101"), "{error}");
    }
}
