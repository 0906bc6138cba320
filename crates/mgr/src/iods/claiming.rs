//! The CLAIM exchange with iods: by a claim, a metadata store takes over an iod and its objects. The mgr claims an iod
//! when the iod connects, and claims all iods again whenever it makes a new mark (a random number in the claim).

use super::claims::Refusal;
use super::link::{Link, RequestError};
use super::{Iods, Refused};
use futures_util::future::join_all;
use net::clock::unix_now;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use types::{Generation, Status};
use wire::native::{Claim, ClaimArgs, ClaimReply, Claiming, Procedure, Rights, STORE_OBJECT};

/// Before the mgr claims an iod, it tries to connect to all other configured iods, and waits at most this long for
/// them. If one of them refuses the metadata store, the mgr claims no iod.
const OTHERS: Duration = Duration::from_secs(2);
/// Time limit for an iod to reply with its claim. The iod may have died since its reply to HELLO, and the mgr claims
/// other iods only after this reply.
const SILENT: Duration = Duration::from_secs(5);
/// Time limit for an iod to find and return the highest inode number among its objects.
const LISTED: Duration = Duration::from_secs(60);
/// Largest number of attempts to claim an iod while another mgr changes the claim of the iod.
const TRIES: usize = 4;

/// Error text for an iod whose disk has lost a mark (the random number in a claim) that the iod had accepted.
const BEHIND: &str = "its disk is an older copy: the iod was given a later mark than it remembers, and files would have the bytes of that time; nothing was \
                      changed: start the iod on its newest disk; if that is lost, docs/replacing-a-disk.md says what to do";

/// Returns the mark in the claim of an iod; 0 if the iod has no claim.
fn mark_of(answer: &ClaimReply) -> u64 {
    answer.remembered.map_or(0, |claim| claim.mark)
}

/// Why the mgr did not claim an iod.
pub(super) enum Unclaimed {
    Refused(Refusal),
    Failed(String),
}

impl Iods {
    async fn ask_claim(&self, link: &Link, claiming: Option<Claiming>, highest: bool) -> Result<ClaimReply, String> {
        let cap = link.capability(STORE_OBJECT, Generation::default(), Rights::ADMIN);
        let (now, least_epoch) = (unix_now(), self.least_epoch.load(SeqCst));
        let arguments = ClaimArgs { cap, claiming, now, least_epoch, highest };
        let limit = if highest { LISTED } else { SILENT };
        let answer = tokio::time::timeout(limit, link.ask(Procedure::Claim, &arguments)).await;
        answer.unwrap_or(Err(RequestError::Down)).map_err(|asked| match asked {
            RequestError::Down => "no answer to CLAIM; every host needs the same version of weir".to_owned(),
            RequestError::Refused(status, why) if why.is_empty() => format!("CLAIM failed: {status}"),
            RequestError::Refused(status, why) => format!("CLAIM failed: {status}: {why}"),
        })
    }

    /// Requests from an iod its claim and the highest inode number among its objects.
    pub(super) async fn remembered(&self, link: &Link) -> Result<ClaimReply, String> {
        self.ask_claim(link, None, true).await
    }

    fn judge(&self, link: &Link, answer: &ClaimReply) -> Result<(), Unclaimed> {
        let failed = |e: Status| Unclaimed::Failed(format!("the metadata store cannot be read: {e}"));
        self.claims.judge(answer).map_err(failed)?.map_err(Unclaimed::Refused)?;
        match self.claims.is_behind(link.hello.iod, mark_of(answer)).map_err(failed)? {
            true => Err(Unclaimed::Failed(BEHIND.to_owned())),
            false => Ok(()),
        }
    }

    /// Checks whether the mgr may claim the newly connected iod at the configured address with index `slot`. Until the
    /// mgr has claimed the iod, the iod refuses all requests of clients.
    pub(super) async fn may_claim(&self, slot: usize, link: &Link) -> Result<(), Unclaimed> {
        let answer = self.ask_claim(link, None, false).await.map_err(Unclaimed::Failed)?;
        self.judge(link, &answer)?;
        self.set_tried(slot);
        let all = self.slots.len();
        let others = self.tried.subscribe();
        let wait = async { drop(others.clone().wait_for(|tried| *tried >= all).await) };
        // An iod that does not reply must not delay the other iods, so the wait has a time limit.
        let _ = tokio::time::timeout(OTHERS, wait).await;
        self.check_not_refused()
    }

    /// Returns an error if an iod has refused this metadata store, because the mgr must then claim no other iod.
    pub(super) fn check_not_refused(&self) -> Result<(), Unclaimed> {
        let why = |refused: Refused| format!("the iod at {} has refused the metadata store", refused.address);
        self.refused().map_or(Ok(()), |refused| Err(Unclaimed::Failed(why(refused))))
    }

    /// Claims an iod, even if the iod already has the newest mark. After each of its starts, an iod serves clients only
    /// once the mgr has claimed it.
    pub(super) async fn claim_now(&self, link: &Link) -> Result<Claim, Unclaimed> {
        let failed = |e: Status| Unclaimed::Failed(format!("the claim cannot be recorded: {e}"));
        let iod = link.hello.iod;
        let _lock = self.claims.locks.of(iod).await;
        let mut answer = self.ask_claim(link, None, false).await.map_err(Unclaimed::Failed)?;
        for _ in 0..TRIES {
            self.judge(link, &answer)?;
            let claim = self.claims.current().await.map_err(failed)?;
            let expected = mark_of(&answer);
            if expected != claim.mark {
                self.claims.record_sent(iod, expected, claim.mark).await.map_err(failed)?;
            }
            let claiming = Claiming { expected, next: self.claims.next().map_err(failed)?, claim };
            answer = self.ask_claim(link, Some(claiming), false).await.map_err(Unclaimed::Failed)?;
            if answer.taken && self.claims.current().await.map_err(failed)? == claim {
                self.claims.record_accepted(iod, claim.mark).await.map_err(failed)?;
                self.namespace.hold_numbers(self.refused().is_some());
                return Ok(claim);
            }
        }
        Err(Unclaimed::Failed("another mgr claims it at the same time".to_owned()))
    }

    /// Claims a connected iod again, because the iod may not have the newest mark.
    pub(super) async fn claim_again(&self, number: u16, link: &Arc<Link>) -> Result<(), Unclaimed> {
        let claim = self.claim_now(link).await?;
        if let Some(member) = self.state().members.get_mut(&number) {
            member.claimed = Some(claim.mark);
        }
        Ok(())
    }

    /// Returns whether the mgr must make a new mark, because the store has allocated most of the inode numbers that the
    /// current claim covers.
    pub(crate) async fn is_short_of_numbers(&self) -> bool {
        self.claims.is_short_of_numbers().await == Ok(true)
    }

    /// Stores a new mark on all connected iods. The other iods get the mark when they connect. An iod with the new mark
    /// detects every copy of the store from before the mark as an older copy.
    pub(crate) async fn leave_mark(&self) -> Result<(), Status> {
        let newest = self.claims.renew().await?;
        let up = self.up();
        // Claim all iods concurrently, so that an iod that does not reply does not delay the others.
        join_all(up.iter().map(|(number, link)| self.leave_with(*number, link))).await;
        let all_have = self.state().members.values().all(|member| member.claimed == Some(newest.mark));
        if all_have { self.claims.forget_oldest().await } else { Ok(()) }
    }

    /// Claims a connected iod again. If this fails, closes the link, so that the mgr reconnects to the iod and claims
    /// it then.
    pub(super) async fn leave_with(&self, number: u16, link: &Arc<Link>) {
        match self.claim_again(number, link).await {
            Ok(()) => return,
            Err(Unclaimed::Failed(why)) => {
                tracing::info!(
                    number,
                    "an iod did not take the claim of this metadata store; reconnecting to it: {why}"
                )
            }
            Err(Unclaimed::Refused(refusal)) => self.refuse(link.path().to_string(), refusal),
        }
        link.close();
    }

    /// Records that the iod at `address` refused the metadata store. The mgr must stop if its store is an older copy,
    /// or if no iod has accepted a claim since the start of the mgr.
    pub(super) fn refuse(&self, address: String, refusal: Refusal) {
        let began = self.state().members.values().any(|member| member.claimed.is_some());
        if began && matches!(refusal, Refusal::Foreign { .. }) {
            return;
        }
        self.namespace.hold_numbers(true);
        self.refused.send_if_modified(|refused| {
            let first = refused.is_none();
            refused.get_or_insert(Refused { address, refusal });
            first
        });
    }

    /// Returns the first refusal by an iod because of which the mgr must stop.
    pub(crate) fn refused(&self) -> Option<Refused> {
        self.refused.borrow().clone()
    }

    /// Completes when an iod has refused the metadata store and the mgr must stop for this reason.
    pub(crate) async fn until_refused(&self) -> Refused {
        let mut refused = self.refused.subscribe();
        loop {
            if let Some(refused) = refused.borrow_and_update().clone() {
                return refused;
            }
            if refused.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Records that the mgr has tried to connect to the configured address with index `slot`. Claims of other iods no
    /// longer wait for this address.
    pub(super) fn set_tried(&self, slot: usize) {
        if !self.slots[slot].tried.swap(true, std::sync::atomic::Ordering::Relaxed) {
            self.tried.send_modify(|tried| *tried += 1);
        }
    }
}
